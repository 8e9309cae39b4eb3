"""The table at the end of the demo."""

from __future__ import annotations

import torch
from rich.table import Table

from fa_triton.demo.comparison import Comparison
from fa_triton.demo.compiling import compile_seconds, compiled_variants
from fa_triton.demo.generation import Generation
from fa_triton.device import cpu_mode, device_info
from fa_triton.native.threads import num_threads


def device_path(device: torch.device) -> str:
    """Say what ran the kernels."""
    info = device_info(device)
    if info.kind == "cpu":
        mode = cpu_mode()
        threads = num_threads() if mode == "native" else torch.get_num_threads()
        return f"cpu, {mode}, {threads} thread{'s' * (threads != 1)}"
    return f"{info.kind}, {info.name} ({info.target})"


def report(
    ours: Generation,
    theirs: Generation,
    comparison: Comparison,
    dtype: str,
    device: torch.device,
) -> Table:
    """Lay out the comparison.

    Args:
        ours: Generated with fa_triton.
        theirs: Generated with torch SDPA.
        comparison: How far they agree.
        dtype: Name of the model's dtype.
        device: Where the model ran.
    """
    table = Table(title=f"fa_triton and torch SDPA, {dtype}", title_justify="left")
    table.add_column("measure")
    table.add_column("value")
    color = "green" if comparison.all_equal else "red" if dtype == "float32" else "yellow"
    table.add_row(
        "tokens equal to SDPA's",
        f"[{color}]{comparison.equal} of {comparison.total}[/{color}]",
    )
    table.add_row("largest logit difference", f"{comparison.max_logit_difference:.2g}")
    table.add_row("attention time, fa_triton", _attention_time(ours))
    table.add_row("attention time, SDPA", _attention_time(theirs))
    table.add_row("whole generation, fa_triton", f"{ours.seconds - ours.compile_seconds:.2f} s")
    table.add_row("whole generation, SDPA", f"{theirs.seconds:.2f} s")
    table.add_row("device path", device_path(device))
    table.add_row("compile seconds", _compiling())
    return table


def _attention_time(generation: Generation) -> str:
    spent = generation.attention
    seconds = spent.seconds - generation.compile_seconds
    return f"{1e3 * seconds:.1f} ms in {spent.calls} calls"


def _compiling() -> str:
    compiled, loaded = compiled_variants()
    if not compiled and not loaded:
        return "not counted on this path"
    return f"{compile_seconds():.2f} ({compiled} variants compiled, {loaded} from the disk cache)"
