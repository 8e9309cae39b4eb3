"""``python -m perf.run overhead``: what a call of ``flash_attn`` costs beside its arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.attention import known_problems
from fa_triton.validation import validate_flash_attn
from perf.environment import command_line, provenance
from perf.timing import compare, torch_threads

RESULTS = Path(__file__).parent / "results" / "overhead.jsonl"

# A decode step so small that its arithmetic takes a few microseconds.
NUM_SEQUENCES, NUM_KEYS, HEADS_Q, HEADS_KV, HEAD_DIM = 4, 10, 4, 2, 64
VALIDATED_ANEW = "flash_attn, arguments not seen before"


def command(
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls of each candidate.")] = 3000,
    output: Annotated[Path, typer.Option(help="JSONL file, replaced.")] = RESULTS,
) -> None:
    """Time a tiny decode call and its parts on one thread of the CPU, the best of many."""
    console = Console(highlight=False)
    with torch_threads(1):
        calls = candidates()
        # this one makes the others forget, so it has rounds of its own
        anew = {VALIDATED_ANEW: calls.pop(VALIDATED_ANEW)}
        timings = compare(calls, rounds=rounds, warm_up=20) | compare(anew, rounds=rounds)
    table = Table("call", "us", title="Best elapsed time, one thread")
    origin = provenance(command_line())
    lines = []
    for name, timing in timings.items():
        table.add_row(name, f"{1e3 * timing.wall_ms:.1f}")
        lines.append({"kind": "overhead", "call": name, **asdict(timing)} | origin)
    console.print(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    console.print(f"{len(lines)} results in {output}")


def candidates() -> dict[str, Callable[[], object]]:
    """Calls to time, the whole one first.

    ``torch.ops`` has the operators once ``flash_attn`` is imported.
    """
    generator = torch.Generator().manual_seed(0)

    def random(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, HEAD_DIM, generator=generator).bfloat16()

    q = random(NUM_SEQUENCES, HEADS_Q)
    k, v = (random(NUM_SEQUENCES * NUM_KEYS, HEADS_KV) for _ in range(2))
    steps = torch.arange(NUM_SEQUENCES + 1, dtype=torch.int32)
    shared: dict[str, Any] = {
        "cu_seqlens_q": steps,
        "cu_seqlens_kv": steps * NUM_KEYS,
        "mask_mode": 3,
        "layout_q": "TND",
        "layout_kv": "TND",
        "layout_out": "TND",
    }
    metadata = flash_attn_metadata(HEADS_Q, HEADS_KV, HEAD_DIM, **shared)
    shared["softmax_scale"] = HEAD_DIM**-0.5
    options: dict[str, Any] = {**shared, "metadata": metadata}

    def validated_anew() -> object:
        known_problems.forget()
        return flash_attn(q, k, v, **options)

    return {
        "flash_attn": lambda: flash_attn(q, k, v, **options),
        VALIDATED_ANEW: validated_anew,
        "flash_attn, plan inside the call": lambda: flash_attn(q, k, v, **shared),
        "torch.ops.fa_triton.flash_attn": lambda: torch.ops.fa_triton.flash_attn(
            q, k, v, **options
        ),
        "validation alone": lambda: validate_flash_attn(q, k, v, **options),
        "recalling the problem alone": lambda: known_problems.problem_of(q, k, v, options),  # type: ignore[arg-type]
    }
