"""Launches of the two phases: forward over the plan, then the combine of the rows it cut."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.attention.operands import (
    RowOperand,
    lse_operand,
    output_operand,
    query_operand,
    sink_table,
)
from fa_triton.attention.rows import RowUnits
from fa_triton.attention.variants import combine_constants, forward_constants, kernel_form
from fa_triton.launch import runner
from fa_triton.layout import strides
from fa_triton.planner.table import Header
from fa_triton.problem import AttnProblem
from fa_triton.tile_config import TileConfig


@dataclass(frozen=True)
class Lengths:
    """Length tensors on the device; None where the shape says it."""

    cu_seqlens_q: torch.Tensor | None
    cu_seqlens_kv: torch.Tensor | None
    seqused_q: torch.Tensor | None
    seqused_kv: torch.Tensor | None


@dataclass(frozen=True)
class Workspace:
    """Un-normalised rows of cut row blocks.

    Attributes:
        acc: ``[slots, block_q, D]`` fp32.
        max: ``[slots, block_q]`` fp32.
        sum: ``[slots, block_q]`` fp32.
    """

    acc: torch.Tensor
    max: torch.Tensor
    sum: torch.Tensor

    @staticmethod
    def allocate(header: Header, head_dim: int, device: torch.device) -> Workspace:
        """Take memory for every slot of a plan, one at least."""
        slots = max(header.num_slots, 1)
        rows = (slots, header.block_q)
        return Workspace(
            acc=torch.empty((*rows, head_dim), dtype=torch.float32, device=device),
            max=torch.empty(rows, dtype=torch.float32, device=device),
            sum=torch.empty(rows, dtype=torch.float32, device=device),
        )


def run_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    lengths: Lengths,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    problem: AttnProblem,
    table: torch.Tensor,
    header: Header,
    units: RowUnits,
    tile: TileConfig,
) -> None:
    """Write attention of q over k and v to ``out`` and ``lse`` as the plan ``table`` says."""
    fill = rows_may_stay_unvisited(problem)
    rows_q = query_operand(q, problem, units)
    rows_out = output_operand(out, problem, units, fill)
    rows_lse = None if lse is None else lse_operand(lse, problem, units, fill)
    sink_rows = max(tile.block_q, tile.combine_rows)
    sink, stride_sink = (None, 0) if sinks is None else sink_table(sinks, units, sink_rows)
    work = Workspace.allocate(header, problem.head_dim_v, q.device)
    optional = {
        "cu_seqlens_q": lengths.cu_seqlens_q,
        "seqused_q": lengths.seqused_q,
        "sinks": sink,
        "softmax_lse": None if rows_lse is None else rows_lse.tensor,
    }
    shared = {
        "out": rows_out.tensor,
        "part_acc": work.acc,
        "part_max": work.max,
        "part_sum": work.sum,
        "plan": table,
        "block_q": header.block_q,
        "slots_per_section": header.slots_per_section,
        "seqlen_q": problem.seqlen_q if problem.layout_q != "TND" else header.longest_q,
        "num_units": units.num_units,
        "stride_sink": stride_sink,
        **_row_stride_arguments("o", rows_out),
        **_row_stride_arguments("l", rows_lse),
    }
    _forward(rows_q, k, v, lengths, optional, shared, problem, header, units, tile)
    if header.is_fd:
        _combine(optional, shared, problem, header, units, tile)
    rows_out.deliver()
    if rows_lse is not None:
        rows_lse.deliver()


def rows_may_stay_unvisited(problem: AttnProblem) -> bool:
    """Whether some row of the result may lie in no row block that the plan visits.

    Padding behind actual lengths, and rows without a visible key.
    """
    by_tensor = (
        problem.has_cu_seqlens_q
        or problem.has_cu_seqlens_kv
        or problem.has_seqused_q
        or problem.has_seqused_kv
    )
    right = problem.window[1]
    return by_tensor or (right >= 0 and problem.seqlen_kv - problem.seqlen_q + right < 0)


def _forward(
    rows_q: RowOperand,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: Lengths,
    optional: dict[str, torch.Tensor | None],
    shared: dict[str, object],
    problem: AttnProblem,
    header: Header,
    units: RowUnits,
    tile: TileConfig,
) -> None:
    from fa_triton.kernels.attn_forward import attn_forward

    win_left, win_right = problem.window
    by_k, by_v = strides(k, problem.layout_kv), strides(v, problem.layout_kv)
    constants = forward_constants(problem, header, units, tile)
    kv_lengths = {"cu_seqlens_kv": lengths.cu_seqlens_kv, "seqused_kv": lengths.seqused_kv}
    optional = {**optional, **kv_lengths}
    runner(attn_forward)[(header.num_sections * header.num_aic,)](
        q=rows_q.tensor,
        k=k,
        v=v,
        block_kv=header.block_kv,
        num_aic=header.num_aic,
        softmax_scale=problem.softmax_scale,
        seqlen_kv=problem.total_kv if problem.layout_kv == "TND" else problem.seqlen_kv,
        win_left=win_left,
        win_right=win_right,
        units_per_kv=units.units_per_kv,
        stride_kb=by_k.outer,
        stride_kn=by_k.head,
        stride_ks=by_k.token,
        stride_vb=by_v.outer,
        stride_vn=by_v.head,
        stride_vs=by_v.token,
        **_row_stride_arguments("q", rows_q),
        **optional,
        **shared,
        **constants,
        variant=kernel_form("attn_forward", problem.dtype, constants, optional).key,
    )


def _combine(
    optional: dict[str, torch.Tensor | None],
    shared: dict[str, object],
    problem: AttnProblem,
    header: Header,
    units: RowUnits,
    tile: TileConfig,
) -> None:
    from fa_triton.kernels.attn_combine import attn_combine

    constants = combine_constants(problem.head_dim_v, not header.is_section_stream_k, units, tile)
    runner(attn_combine)[(header.num_sections * header.num_aiv,)](
        ranges_word=header.vectors_offset,
        tasks_word=header.vectors_offset if header.is_section_stream_k else header.tasks_offset,
        num_aiv=header.num_aiv,
        **optional,
        **shared,
        **constants,
        variant=kernel_form("attn_combine", problem.dtype, constants, optional).key,
    )


def _row_stride_arguments(name: str, rows: RowOperand | None) -> dict[str, int]:
    if rows is None:
        return {f"stride_{name}{axis}": 0 for axis in "btnr"}
    by = rows.strides
    return {
        f"stride_{name}b": by.batch,
        f"stride_{name}t": by.token,
        f"stride_{name}n": by.unit,
        f"stride_{name}r": by.row,
    }
