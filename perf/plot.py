"""Turn results into the README's table and a plot: ``python -m perf.plot``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from perf.environment import ROOT

RESULTS = ROOT / "perf" / "results" / "cpu.jsonl"
KDA_RESULTS = ROOT / "perf" / "results" / "kda.jsonl"
PLOT = ROOT / "docs" / "cpu_performance.png"
README = ROOT / "README.md"
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"
KDA_MARKERS = "<!-- kda: begin -->", "<!-- kda: end -->"

GOAL = 0.95
DTYPE_COLOURS = {"bf16": "#4477aa", "fp16": "#ccbb44", "fp32": "#228833"}

Result = dict[str, Any]


def read_results(path: Path) -> list[Result]:
    """Read a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def _of_kind(results: Iterable[Result], kind: str) -> list[Result]:
    return [r for r in results if r["kind"] == kind]


def _peer_has_amx(result: Result) -> bool:
    return result["peer_amx"]


def table(results: list[Result]) -> str:
    """Return the README's performance section: ratios, first calls, where they come from."""
    timings = _of_kind(results, "timing")
    many = max(r["threads"] for r in timings)
    amx = any(map(_peer_has_amx, timings))
    rows: dict[tuple[str, str], dict[str, Result]] = {}
    for r in timings:
        column = "many" if r["threads"] == many > 1 else "one"
        if amx and r["dtype"] == "bf16" and not _peer_has_amx(r):
            column = "no_amx"
        rows.setdefault((r["workload"], r["dtype"]), {})[column] = r
    columns = {"one": "1 thread, CPU time", "many": f"{many} threads, elapsed"}
    if amx:
        columns["no_amx"] = "1 thread, torch without AMX"
    lines = [
        f"| workload | dtype | {' | '.join(columns.values())} | fastest peer |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for (workload, dtype), found in rows.items():
        cells = [f"{found[c]['ratio']:.2f}" if c in found else "" for c in columns]
        peer = next(iter(found.values()))["peer"]
        lines.append(f"| {workload} | {dtype} | {' | '.join(cells)} | {peer} |")
    first = _of_kind(results, "first_call")
    if first:
        lines += [
            "",
            "| first call of a process | empty cache, s | filled cache, s |",
            "|---|---|---|",
        ]
        lines += [
            f"| {r['workload']} {r['dtype']} | {r['cold']['first_s']:.2f}"
            f" | {r['warm']['first_s']:.2f} |"
            for r in first
        ]
    return "\n".join([*lines, "", _provenance(results[0])])


def kda_table(results: list[Result]) -> str:
    """Return the README's section of linear attention: ratios, shares of the phases, origin."""
    lines = [
        "| gate | dtype | 1 thread, CPU time | goal | fastest peer | share of the phases |",
        "|---|---|---|---|---|---|",
    ]
    for r in _of_kind(results, "timing"):
        total = sum(r["phases_ms"].values())
        shares = ", ".join(
            f"{name} {100 * ms / total:.0f} %" for name, ms in r["phases_ms"].items()
        )
        lines.append(
            f"| {r['workload']} | {r['dtype']} | {r['ratio']:.2f} | {r['goal']:.2f} | {r['peer']} "
            f"| {shares} |"
        )
    return "\n".join([*lines, "", _provenance(results[0])])


def _provenance(result: Result) -> str:
    packages = ", ".join(f"{k} {v}" for k, v in result["toolchain"].items() if v)
    return (
        f"Measured {result['date']} by `{result['command']}` at commit {result['commit']} on "
        f"{result['device']}; {packages}."
    )


def plot(results: list[Result], path: Path) -> None:
    """Draw our time over the fastest peer's, one panel per thread count."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    timings = _of_kind(results, "timing")
    if any(map(_peer_has_amx, timings)):
        timings = list(filter(_peer_has_amx, timings))
    counts = sorted({r["threads"] for r in timings})
    workloads = list(dict.fromkeys(r["workload"] for r in timings))
    figure, axes = plt.subplots(
        1, len(counts), figsize=(4.6 * len(counts), 3.2), sharey=True, squeeze=False
    )
    width = 0.8 / len(DTYPE_COLOURS)
    for axis, count in zip(axes[0], counts, strict=True):
        for i, (dtype, colour) in enumerate(DTYPE_COLOURS.items()):
            found = {
                r["workload"]: r["ratio"]
                for r in timings
                if r["threads"] == count and r["dtype"] == dtype
            }
            places = [workloads.index(w) + (i - 1) * width for w in found]
            bars = axis.bar(places, list(found.values()), width, color=colour, label=dtype)
            axis.bar_label(bars, fmt="%.2f", fontsize=7)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.axhline(GOAL, color="grey", linewidth=0.8, linestyle="--")
        axis.set_xticks(range(len(workloads)), workloads)
        measure = "CPU time" if count == 1 else "elapsed time"
        axis.set_title(f"{count} thread{'s' if count > 1 else ''}, {measure}", fontsize=9)
    axes[0][0].set_ylabel("fa_triton / fastest SDPA")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


def fill_readme(section: str, path: Path, markers: tuple[str, str] = (BEGIN, END)) -> None:
    """Replace what stands between the two markers."""
    begin, end = markers
    text = path.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"`{path.name}` must hold the markers {begin} and {end}")
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{begin}\n{section}\n{end}", text))


def main(
    results: Annotated[Path, typer.Option(help="JSONL file of perf.run.")] = RESULTS,
    picture: Annotated[Path, typer.Option(help="PNG file, replaced.")] = PLOT,
    kda_results: Annotated[Path, typer.Option(help="That of the command kda.")] = KDA_RESULTS,
    readme: Annotated[Path, typer.Option(help="File with the markers.")] = README,
) -> None:
    """Renew the plot and the README's performance tables."""
    found = read_results(results)
    plot(found, picture)
    fill_readme(table(found), readme)
    fill_readme(kda_table(read_results(kda_results)), readme, KDA_MARKERS)


if __name__ == "__main__":
    typer.run(main)
