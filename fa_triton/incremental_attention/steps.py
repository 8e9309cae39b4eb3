"""Decode steps that repeat an earlier one: a launch exchanges addresses, nothing is derived anew.

A known problem is the same object for calls that are alike in all but values, and it says host
lengths. What its first call found out (plan, forms, arguments) holds for the next ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from fa_triton.attention.metadata import KnownHeader
from fa_triton.attention.operands import scale_operands
from fa_triton.device import device_info
from fa_triton.incremental_attention.tensors import scales_and_offsets
from fa_triton.validation import check_has_memory

if TYPE_CHECKING:
    from fa_triton.attention.metadata import PlannedCall
    from fa_triton.attention.repeats import Repeat
    from fa_triton.device import DeviceInfo
    from fa_triton.incremental_problem import Cache, IncreOptions, IncreProblem
    from fa_triton.native.kernel import BoundLaunch

_KEPT_STEPS = 64


@dataclass(frozen=True, eq=False)
class _Step:
    """What every repetition of a call has in common.

    Attributes:
        problem: The known problem, which its key has the identity of.
        info: The device, on whose cores the plan depends.
        planned: The plan.
        repeat: The first launch, which owns the workspace.
        lengths: Lengths of the keys that the host knows, as the kernel reads them.
        launch: The launch, which takes the addresses of what a caller gives.
        tables: Scales and offsets by the kernel's names, where they lie in the caller's: the
            option, and bytes from its start in fp32. None if they must be laid out anew.
    """

    problem: IncreProblem
    info: DeviceInfo
    planned: PlannedCall
    repeat: Repeat
    lengths: torch.Tensor | None
    launch: BoundLaunch
    tables: tuple[tuple[str, str, int], ...] | None


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
    out = torch.empty(problem.out_shape, dtype=query.dtype, device=query.device)
    if step.repeat.call.needs_fill:
        out.zero_()
    addresses = {
        "q": query.data_ptr(),
        "k": _one(key).data_ptr(),
        "v": _one(value).data_ptr(),
        "out": out.data_ptr(),
    }
    pages = options.get("block_table")
    if pages is not None:
        addresses["block_table"] = pages.data_ptr()
    # named, so that what they are cast or laid out to lives until the launch is over
    tables: dict[str, torch.Tensor]
    if step.tables is None:
        tables = scale_operands(*scales_and_offsets(options, problem))
        addresses |= {name: operand.data_ptr() for name, operand in tables.items()}
    else:
        tables = _in_fp32(problem, options)
        for name, option, distance in step.tables:
            addresses[name] = tables[option].data_ptr() + distance
    return out if step.launch.launch(addresses) else None


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
    tables = _tables(problem, options)
    work = repeat.work
    kept = {
        "plan": planned.table,
        "seqused_kv": lengths,
        "part_acc": work.acc,
        "part_max": work.max,
        "part_sum": work.sum,
    }
    addresses = {name: each.data_ptr() for name, each in kept.items() if each is not None}
    launch = repeat.launch.fix(addresses)
    if launch is None:
        return
    if len(_steps) >= _KEPT_STEPS:
        _steps.clear()
    info = device_info(attn.device)
    _steps[id(problem)] = _Step(problem, info, planned, repeat, lengths, launch, tables)


def _in_fp32(problem: IncreProblem, options: IncreOptions) -> dict[str, torch.Tensor]:
    """Scales and offsets of the caller by option."""
    scale, offset = options.get("antiquant_scale"), options.get("antiquant_offset")
    tables = {}
    if problem.quant is not None and scale is not None:
        tables["antiquant_scale"] = scale
    if problem.has_antiquant_offset and offset is not None:
        tables["antiquant_offset"] = offset
    for name, table in tables.items():
        check_has_memory(name, table)
    return {name: table.float() for name, table in tables.items()}


def _tables(
    problem: IncreProblem, options: IncreOptions
) -> tuple[tuple[str, str, int], ...] | None:
    """Where the kernel's operands lie in the caller's tables; None if one is more than a cast."""
    given = _in_fp32(problem, options)
    options = cast("IncreOptions", {**options, **given})
    tables = []
    for name, operand in scale_operands(*scales_and_offsets(options, problem)).items():
        option = "antiquant_offset" if name.endswith("offset") else "antiquant_scale"
        if given[option].untyped_storage().data_ptr() != operand.untyped_storage().data_ptr():
            return None
        tables.append((name, option, operand.data_ptr() - given[option].data_ptr()))
    return tuple(tables)
