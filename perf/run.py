"""Benchmarks ``python -m perf.run cpu``, ``decode``, ``kda``, ..; JSON in results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from perf import decode, first_call, kda, overhead, planner, vllm_speed
from perf.candidates import ours, peers
from perf.environment import WITHOUT_AMX, amx_is_disabled, command_line, has_amx, provenance
from perf.gate import check
from perf.model import command as model_command
from perf.shapes import DTYPES, WORKLOADS, make_tensors
from perf.timing import Timing, compare, torch_threads

RESULTS = Path(__file__).parent / "results"
OURS = "fa_triton"

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console()
app.command("decode")(decode.command)
app.command("kda")(kda.command)
app.command("planner")(planner.command)
app.command("overhead")(overhead.command)
app.command("model")(model_command.command)
app.command("vllm")(vllm_speed.command)


@app.callback()
def _root() -> None:
    """Measure fa_triton against a peer in the same run."""


def _ratio(timings: dict[str, Timing], threads: int) -> tuple[str, float]:
    """Return the fastest peer and our time over its: CPU time on one thread, else elapsed."""

    def key(name: str) -> float:
        return timings[name].cpu_ms if threads == 1 else timings[name].wall_ms

    peer = min((name for name in timings if name != OURS), key=key)
    return peer, key(OURS) / key(peer)


def _measure(workload: str, dtype: str, threads: list[int], rounds: int) -> list[dict[str, Any]]:
    """Check one workload in one dtype, then time it for every thread count."""
    shape = WORKLOADS[workload]
    tensors = make_tensors(shape, DTYPES[dtype])
    call = ours(shape, tensors)
    accuracy = check(shape, tensors, call())
    if not accuracy.passed:
        raise RuntimeError(
            f"{workload} {dtype}: error {accuracy.ratio:.2f}x that of plain rounding; not timed"
        )
    lines = []
    for count in threads:
        with torch_threads(count):
            timings = compare({OURS: call, **peers(shape, tensors)}, rounds=rounds)
        peer, ratio = _ratio(timings, count)
        lines.append(
            {
                "kind": "timing",
                "workload": workload,
                "dtype": dtype,
                "threads": count,
                "measure": "cpu" if count == 1 else "wall",
                "peer": peer,
                "peer_amx": has_amx() and not amx_is_disabled(),
                "ratio": round(ratio, 4),
                "error_ratio": round(accuracy.ratio, 4),
                "max_error": accuracy.max_error,
                "timings": {name: asdict(t) for name, t in timings.items()},
            }
        )
        console.print(
            f"{workload:8} {dtype} {count} thread(s): {ratio:.3f} x {peer}"
            f" (error {accuracy.ratio:.3f} x rounding)"
        )
    return lines


def _first_calls(workloads: list[str], dtype: str) -> list[dict[str, Any]]:
    lines = []
    for workload in workloads:
        seconds = first_call.measure(workload, dtype)
        lines.append({"kind": "first_call", "workload": workload, "dtype": dtype, **seconds})
        console.print(
            f"{workload:8} {dtype} first call: {seconds['cold']['first_s']:.2f} s with an empty "
            f"cache, {seconds['warm']['first_s']:.2f} s with a filled one "
            f"(imports {seconds['warm']['imports_s']:.1f} s)"
        )
    return lines


def _without_amx(workloads: list[str], dtypes: list[str], rounds: int) -> list[dict[str, Any]]:
    """Time bf16 again in a process whose peer has the instructions that our path has."""
    if "bf16" not in dtypes or not has_amx() or amx_is_disabled():
        return []
    console.print("the same with AMX denied to torch, not to us:")
    with tempfile.TemporaryDirectory(prefix="fa_triton_perf_") as folder:
        output = Path(folder) / "cpu.jsonl"
        command = [sys.executable, "-m", "perf.run", "cpu", "--dtype", "bf16", "--threads", "1"]
        command += ["--rounds", str(rounds), "--no-first-calls", "--output", str(output)]
        for name in workloads:
            command += ["--workload", name]
        subprocess.run(command, env=dict(os.environ, **WITHOUT_AMX), check=True)
        return [json.loads(line) for line in output.read_text().splitlines()]


@app.command()
def cpu(
    workload: Annotated[list[str] | None, typer.Option(help="Only these workloads.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only these dtypes.")] = None,
    rounds: Annotated[int, typer.Option(help="Timed calls per candidate.")] = 15,
    threads: Annotated[
        list[int] | None, typer.Option(help="Thread counts; default: 1 and all cores.")
    ] = None,
    first_calls: Annotated[bool, typer.Option(help="Also time first calls.")] = True,
    output: Annotated[Path, typer.Option(help="JSONL file, replaced.")] = RESULTS / "cpu.jsonl",
) -> None:
    """Compare the native CPU path with torch's scaled-dot-product attention."""
    workloads, dtypes = workload or list(WORKLOADS), dtype or list(DTYPES)
    for given, known in ((workloads, WORKLOADS), (dtypes, DTYPES)):
        for name in given:
            if name not in known:
                raise typer.BadParameter(f"{name!r} must be one of {', '.join(known)}")
    counts = threads or sorted({1, os.cpu_count() or 1})
    origin = provenance(command_line())
    lines: list[dict[str, Any]] = []
    for name in workloads:
        for kind in dtypes:
            lines += _measure(name, kind, counts, rounds)
    if 1 in counts:
        lines += _without_amx(workloads, dtypes, rounds)
    if first_calls:
        lines += _first_calls(workloads, dtypes[0])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(line | origin) + "\n" for line in lines))
    console.print(f"{len(lines)} results in {output}")


if __name__ == "__main__":
    app()
