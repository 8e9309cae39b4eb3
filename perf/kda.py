"""``python -m perf.run kda``: the chunked Kimi Delta Attention on the CPU against plain torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fa_triton import chunk_kda
from perf.environment import command_line, provenance
from perf.kda_bytes import phase_bytes
from perf.kda_peers import peers
from perf.kda_phases import phase_calls
from perf.kda_workloads import WORKLOADS, KdaWorkload, check, make_inputs
from perf.shapes import DTYPES
from perf.timing import compare, torch_threads

RESULTS = Path(__file__).parent / "results" / "kda.jsonl"
OURS = "fa_triton"
DEVICES = ("A2", "A3", "A5", "cpu")

Line = dict[str, Any]


def command(
    dtype: Annotated[list[str] | None, typer.Option(help="bf16, fp16; default: both.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls per candidate.")] = 9,
    output: Annotated[Path, typer.Option(help="JSONL file, replaced.")] = RESULTS,
) -> None:
    """Compare the native path with two vectorised forms in torch: one thread, CPU time."""
    console = Console(highlight=False)
    origin = provenance(command_line())
    lines: list[Line] = []
    for workload in WORKLOADS.values():
        for name in dtype or ("bf16", "fp16"):
            line = measure(workload, name, rounds)
            lines.append(line)
            verdict = "reached" if line["ratio"] <= line["goal"] else "missed"
            console.print(
                f"{workload.name:9} {name}: {line['ratio']:.3f} x {line['peer']}, goal "
                f"{line['goal']:.2f} {verdict} (error {line['error_ratio']:.3f} x rounding)"
            )
            console.print("  share of the phases: " + _shares(line["phases_ms"]))
        for device in DEVICES:
            lines += [
                {"kind": "bytes", "workload": workload.name, "target": device, **asdict(counted)}
                for counted in phase_bytes(workload, device)
            ]
    for workload in WORKLOADS:
        console.print(_bytes_table(lines, workload))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(line | origin) + "\n" for line in lines))
    console.print(f"{len(lines)} results in {output}")


def measure(workload: KdaWorkload, dtype: str, rounds: int) -> Line:
    """Check one workload, then time it beside its peers, and its phases beside each other.

    Raises:
        RuntimeError: The result is less exact than plain rounding allows.
    """
    inputs = make_inputs(workload, DTYPES[dtype])

    def ours() -> torch.Tensor:
        return chunk_kda(*inputs.rows, **inputs.options)[0]

    accuracy = check(inputs, ours())
    if not accuracy.passed:
        raise RuntimeError(
            f"{workload.name} {dtype}: error {accuracy.ratio:.2f}x that of plain rounding; "
            "not timed"
        )
    others = peers(inputs)
    with torch_threads(1):
        timings = compare({OURS: ours, **others}, rounds=rounds, warm_up=1)
        phases = compare(phase_calls(inputs), rounds=rounds)
    peer = min(others, key=lambda name: timings[name].cpu_ms)
    return {
        "kind": "timing",
        "workload": workload.name,
        "dtype": dtype,
        "threads": 1,
        "measure": "cpu",
        "peer": peer,
        "ratio": round(timings[OURS].cpu_ms / timings[peer].cpu_ms, 4),
        "goal": workload.goal,
        "error_ratio": round(accuracy.ratio, 4),
        "max_error": accuracy.max_error,
        "timings": {name: asdict(timing) for name, timing in timings.items()},
        "phases_ms": {name: round(timing.cpu_ms, 3) for name, timing in phases.items()},
    }


def _shares(phases_ms: dict[str, float]) -> str:
    total = sum(phases_ms.values())
    return ", ".join(f"{name} {100 * ms / total:.0f} %" for name, ms in phases_ms.items())


def _bytes_table(lines: list[Line], workload: str) -> Table:
    table = Table(
        title=f"{workload}: bytes moved per token and head, counted, and over the least possible"
    )
    table.add_column("phase")
    table.add_column("least", justify="right")
    for device in DEVICES:
        table.add_column(device, justify="right")
    found = [x for x in lines if x["kind"] == "bytes" and x["workload"] == workload]
    for phase in dict.fromkeys(line["phase"] for line in found):
        of_phase = {line["target"]: line for line in found if line["phase"] == phase}
        cells = [f"{of_phase[d]['moved']:.0f} ({_excess(of_phase[d])})" for d in DEVICES]
        table.add_row(phase, f"{of_phase[DEVICES[0]]['compulsory']:.0f}", *cells)
    return table


def _excess(line: Line) -> str:
    return f"{line['moved'] / line['compulsory']:.2f}x"
