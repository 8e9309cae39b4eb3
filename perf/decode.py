"""``python -m perf.run decode``: one decode step over a KV cache against torch's SDPA."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fa_triton import incre_flash_attention
from perf.decode_bytes import CORES, step_bytes
from perf.decode_peers import on_record, peers
from perf.decode_workloads import GOALS, WORKLOADS, DecodeWorkload, check, make_inputs
from perf.environment import command_line, provenance
from perf.timing import compare, torch_threads

RESULTS = Path(__file__).parent / "results" / "decode.jsonl"
OURS = "fa_triton"
# Rounds of the shortest step, and keys that all rounds of a longer one have together.
SHORT_ROUNDS, SHORT_KEYS = 400, 400 * 1024

Line = dict[str, Any]


def command(
    cache: Annotated[list[str] | None, typer.Option(help="bf16, int8; default: both.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls per candidate.")] = 9,
    output: Annotated[Path, typer.Option(help="JSONL file, replaced.")] = RESULTS,
) -> None:
    """Compare a step of the native path with SDPA: one thread, CPU time; count its bytes."""
    console = Console(highlight=False)
    origin = provenance(command_line())
    lines: list[Line] = []
    for workload in WORKLOADS:
        if cache and workload.cache not in cache:
            continue
        line = measure(workload, rounds)
        lines.append(line)
        verdict = "reached" if line["ratio"] <= line["goal"] else "missed"
        console.print(
            f"{workload.cache} {workload.name:26}: {line['ratio']:.3f} x {line['peer']}, goal "
            f"{line['goal']:.2f} {verdict} (error {line['error_ratio']:.3f} x rounding)"
        )
        lines += [_counted(workload, device) for device in CORES]
    console.print(_bytes_table(lines))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(line | origin) + "\n" for line in lines))
    console.print(f"{len(lines)} results in {output}")


def measure(workload: DecodeWorkload, rounds: int) -> Line:
    """Check one workload, then time it beside its peers.

    Raises:
        RuntimeError: The result is less exact than rounding explains.
    """
    inputs = make_inputs(workload)
    key, value = inputs.cache_tensors

    def ours() -> torch.Tensor:
        out = incre_flash_attention(inputs.q, key, value, **inputs.options)
        return out if isinstance(out, torch.Tensor) else out[0]

    accuracy = check(inputs, ours())
    if not accuracy.passed:
        raise RuntimeError(
            f"{workload.cache} {workload.name}: error {accuracy.ratio:.2f}x that of plain "
            "rounding; not timed"
        )
    forms = peers(inputs)
    # short steps more often, so that their best round met nothing else
    rounds = max(rounds, min(SHORT_ROUNDS, SHORT_KEYS // (workload.batch_size * workload.kv_len)))
    with torch_threads(1):
        timings = compare({OURS: ours, **forms}, rounds=rounds)
        # in turns of their own: a gather would leave other keys in the caches than SDPA does
        timings |= compare(on_record(inputs), rounds=rounds)
    cpu_ms = {name: timing.cpu_ms for name, timing in timings.items()}
    peer = min(forms, key=cpu_ms.__getitem__)
    return {
        "kind": "timing",
        "cache": workload.cache,
        "workload": workload.name,
        "cpu_ms": cpu_ms,
        "peer": peer,
        "ratio": cpu_ms[OURS] / cpu_ms[peer],
        "goal": GOALS[workload.cache],
        "error_ratio": accuracy.ratio,
        "max_error": accuracy.max_error,
        "rounds": rounds,
    }


def _counted(workload: DecodeWorkload, device: str) -> Line:
    counted = step_bytes(workload, device)
    names = {"kind": "bytes", "cache": workload.cache, "workload": workload.name, "target": device}
    return {**names, **asdict(counted), "moved": counted.moved, "over_compulsory": counted.ratio}


def _bytes_table(lines: list[Line]) -> Table:
    table = Table(title="Bytes of a step over compulsory bytes, counted from plans")
    for column in ("cache", "workload", *CORES):
        table.add_column(column)
    counted: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        if line["kind"] == "bytes":
            found = counted.setdefault((line["cache"], line["workload"]), {})
            found[line["target"]] = f"{line['over_compulsory']:.3f}"
    for names, ratios in counted.items():
        table.add_row(*names, *(ratios[device] for device in CORES))
    return table
