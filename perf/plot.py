"""Turn results into the README's tables and a plot: ``python -m perf.plot``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from perf.environment import ROOT
from perf.tables import (
    Result,
    decode_table,
    kda_table,
    of_kind,
    peer_has_amx,
    read_results,
    table,
)

RESULTS = ROOT / "perf" / "results" / "cpu.jsonl"
KDA_RESULTS = ROOT / "perf" / "results" / "kda.jsonl"
DECODE_RESULTS = ROOT / "perf" / "results" / "decode.jsonl"
PLOT = ROOT / "docs" / "cpu_performance.png"
README = ROOT / "README.md"
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"
KDA_MARKERS = "<!-- kda: begin -->", "<!-- kda: end -->"
DECODE_MARKERS = "<!-- decode: begin -->", "<!-- decode: end -->"

GOAL = 0.95
DTYPE_COLOURS = {"bf16": "#4477aa", "fp16": "#ccbb44", "fp32": "#228833"}


def plot(results: list[Result], path: Path) -> None:
    """Draw our time over the fastest peer's, one panel per thread count."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    timings = of_kind(results, "timing")
    if any(map(peer_has_amx, timings)):
        timings = list(filter(peer_has_amx, timings))
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
    decode_results: Annotated[
        Path, typer.Option(help="That of the command decode.")
    ] = DECODE_RESULTS,
    readme: Annotated[Path, typer.Option(help="File with the markers.")] = README,
) -> None:
    """Renew the plot and the README's performance tables."""
    found = read_results(results)
    plot(found, picture)
    fill_readme(table(found), readme)
    fill_readme(kda_table(read_results(kda_results)), readme, KDA_MARKERS)
    fill_readme(decode_table(read_results(decode_results)), readme, DECODE_MARKERS)


if __name__ == "__main__":
    typer.run(main)
