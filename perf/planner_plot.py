"""The planner results as a plot and as the tables of ``docs/planner.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fa_triton.planner import BALANCED, SECTION_STREAM_K
from perf.environment import ROOT
from perf.plot import fill_readme

PLOT = ROOT / "docs" / "planner_makespan.png"
DOCUMENT = ROOT / "docs" / "planner.md"

COLOURS = {
    "row_grid": "#bbbbbb",
    "fixed_8_split": "#ccbb44",
    "flashinfer": "#66ccee",
    "fa3": "#aa3377",
    SECTION_STREAM_K: "#ee6677",
    BALANCED: "#228833",
}
# the bars of a plot end here, with their value written beside
MOST_SHOWN = 1.5

Line = dict[str, Any]


def _of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["kind"] == kind]


def _unique(lines: list[Line], field: str) -> list[Any]:
    return list(dict.fromkeys(line[field] for line in lines))


def plot(lines: list[Line], path: Path) -> None:
    """Draw makespan over ideal, one panel per core count."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    lines = _of_kind(lines, "makespan")
    counts, workloads = _unique(lines, "cores"), _unique(lines, "workload")
    figure, axes = plt.subplots(len(counts), 1, figsize=(10, 2.6 * len(counts)), sharex=True)
    width = 0.8 / len(COLOURS)
    for axis, count in zip(axes, counts, strict=True):
        for i, (planner, colour) in enumerate(COLOURS.items()):
            ratios = [
                line["ratio"]
                for line in lines
                if line["cores"] == count and line["planner"] == planner
            ]
            places = [w + (i - (len(COLOURS) - 1) / 2) * width for w in range(len(workloads))]
            heights = [min(ratio, MOST_SHOWN) - 1 for ratio in ratios]
            bars = axis.bar(places, heights, width, bottom=1, color=colour, label=planner)
            labels = [f"{ratio:.1f}" if ratio > MOST_SHOWN else "" for ratio in ratios]
            axis.bar_label(bars, labels, fontsize=5)
        axis.set_ylim(1, MOST_SHOWN + 0.05)
        axis.set_ylabel("makespan / ideal", fontsize=8)
        axis.set_title(f"{count} cores (counted by assumed costs)", fontsize=9)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, ncols=len(COLOURS), loc="upper center")
    axes[-1].set_xticks(range(len(workloads)), workloads, fontsize=7, rotation=12)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def document_section(lines: list[Line]) -> str:
    """Return the generated tables of the document."""
    makespans, times = _of_kind(lines, "makespan"), _of_kind(lines, "planning_time")
    planners = _unique(makespans, "planner")
    text: list[str] = []
    for cores in _unique(makespans, "cores"):
        text += [
            f"| {cores} cores | {' | '.join(planners)} | goal |",
            "|---" * (len(planners) + 2) + "|",
        ]
        for title in _unique(makespans, "title"):
            found = {
                line["planner"]: line
                for line in makespans
                if line["cores"] == cores and line["title"] == title
            }
            ratios = [f"{found[planner]['ratio']:.4f}" for planner in planners]
            text.append(f"| {title} | {' | '.join(ratios)} | {found[BALANCED]['goal']:.3f} |")
        text.append("")
    text += _bounds_rows(_of_kind(lines, "bounds"))
    text += [
        f"| planning on {times[0]['cores']} cores, measured | planner | median ms | best ms "
        "| encoding ms | goal ms |",
        "|---|---|---|---|---|---|",
    ]
    for line in times:
        cells = [f"{line[name]:.3f}" for name in ("median_ms", "best_ms", "encode_ms")]
        goal = "" if line["goal_ms"] is None else f"{line['goal_ms']:.1f}"
        text.append(f"| {line['title']} | {line['planner']} | {' | '.join(cells)} | {goal} |")
    origin = lines[0]
    versions = origin["toolchain"]
    text += [
        "",
        f"Made {origin['date']} by `{origin['command']}` at commit {origin['commit']}; times on "
        f"{origin['device']}, python {versions['python']}, numpy {versions['numpy']}.",
    ]
    return "\n".join(text)


def _bounds_rows(lines: list[Line]) -> list[str]:
    knowledge = _unique(lines, "planned_from")
    text = [
        f"| {lines[0]['cores']} cores, planned from | {' | '.join(knowledge)} |",
        "|---" * (len(knowledge) + 1) + "|",
    ]
    for title in _unique(lines, "title"):
        ratios = [f"{line['ratio']:.3f}" for line in lines if line["title"] == title]
        text.append(f"| {title} | {' | '.join(ratios)} |")
    return [*text, ""]


def fill_document(lines: list[Line], path: Path) -> None:
    """Renew the generated part of the document."""
    fill_readme(document_section(lines), path)
