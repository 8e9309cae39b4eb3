"""Decode steps that repeat an earlier one: a launch exchanges addresses, nothing is derived anew.

A known problem is the same object for calls that are alike in all but values, and it says host
lengths. What its first call found out (plan, forms, arguments) holds for the next ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fa_triton.attention.metadata import KnownHeader
from fa_triton.attention.operands import scale_operands
from fa_triton.device import device_info
from fa_triton.incremental_attention.tensors import scales_and_offsets

if TYPE_CHECKING:
    from fa_triton.attention.metadata import PlannedCall
    from fa_triton.attention.repeats import Repeat
    from fa_triton.device import DeviceInfo
    from fa_triton.incremental_problem import Cache, IncreOptions, IncreProblem

_KEPT_STEPS = 64


@dataclass(frozen=True, eq=False)
class _Step:
    """What every repetition of a call has in common.

    Attributes:
        problem: The known problem, which its key has the identity of.
        info: The device, on whose cores the plan depends.
        planned: The plan.
        repeat: The launch.
        fixed: Tensors that do not change.
        out_shape: Shape of the kernel's result.
    """

    problem: IncreProblem
    info: DeviceInfo
    planned: PlannedCall
    repeat: Repeat
    fixed: dict[str, torch.Tensor | None]
    out_shape: tuple[int, ...]


_steps: dict[int, _Step] = {}


def repeat_step(
    problem: IncreProblem,
    query: torch.Tensor,
    key: Cache,
    value: Cache,
    options: IncreOptions,
) -> torch.Tensor | None:
    """Attend by a kept launch; None for calls that are not kept."""
    step = _steps.get(id(problem))
    if step is None or step.problem is not problem or device_info(query.device) is not step.info:
        return None
    # somebody may have written to the table
    if KnownHeader.of(step.planned.table) is None:
        return None
    out = torch.empty(step.out_shape, dtype=query.dtype)
    if step.repeat.call.needs_fill:
        out.zero_()
    tensors = {
        **step.fixed,
        "q": query,
        "k": _one(key),
        "v": _one(value),
        "out": out,
        "block_table": options.get("block_table"),
    }
    if problem.quant is not None:
        tensors |= scale_operands(*scales_and_offsets(options, problem))
    return out.view(problem.out_shape) if step.repeat.launch.launch(tensors) else None


def _one(cache: Cache) -> torch.Tensor:
    """The tensor of a cache that is none in parts; an operator of torch gets it in a list."""
    return cache if isinstance(cache, torch.Tensor) else cache[0]


def keep_step(
    problem: IncreProblem,
    options: IncreOptions,
    lengths: torch.Tensor | None,
    planned: PlannedCall,
    repeat: Repeat | None,
) -> None:
    """Keep a call that needs nothing but its launch: no views, parts, casts or lengths to read."""
    attn = problem.attn
    if (
        repeat is None
        or problem.is_list
        or problem.has_device_lengths
        or problem.prefix_length
        or problem.output_quant is not None
        or attn.return_softmax_lse
        or options.get("metadata") is not None
    ):
        return
    if len(_steps) >= _KEPT_STEPS:
        _steps.clear()
    work = repeat.work
    fixed = {
        "plan": planned.table,
        "seqused_kv": lengths,
        "part_acc": work.acc,
        "part_max": work.max,
        "part_sum": work.sum,
    }
    info = device_info(attn.device)
    _steps[id(problem)] = _Step(problem, info, planned, repeat, fixed, attn.out_shape)
