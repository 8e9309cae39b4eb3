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
from fa_triton.attention.prepared import PreparedCall
from fa_triton.launch import runner
from fa_triton.layout import strides
from fa_triton.planner.table import Header
from fa_triton.problem import AttnProblem


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
    table: torch.Tensor,
    call: PreparedCall,
) -> None:
    """Write attention of q over k and v to ``out`` and ``lse`` as the plan ``table`` says."""
    problem, header, units, tile = call.problem, call.header, call.units, call.tile
    rows_q = query_operand(q, problem, units)
    rows_out = output_operand(out, problem, units, call.needs_fill)
    rows_lse = None if lse is None else lse_operand(lse, problem, units, call.needs_fill)
    sink_rows = max(tile.block_q, tile.combine_rows)
    sink, stride_sink = (None, 0) if sinks is None else sink_table(sinks, units, sink_rows)
    work = Workspace.allocate(header, problem.head_dim_v, q.device)
    shared = {
        "cu_seqlens_q": lengths.cu_seqlens_q,
        "seqused_q": lengths.seqused_q,
        "sinks": sink,
        "out": rows_out.tensor,
        "softmax_lse": None if rows_lse is None else rows_lse.tensor,
        "part_acc": work.acc,
        "part_max": work.max,
        "part_sum": work.sum,
        "plan": table,
        "block_q": header.block_q,
        "slots_per_section": header.slots_per_section,
        # a plan says how rows are addressed, which longer queries than planned would break
        "seqlen_q": min(_sequence_axis(problem), header.longest_q),
        "num_units": units.num_units,
        "stride_sink": stride_sink,
        **_row_stride_arguments("o", rows_out),
        **_row_stride_arguments("l", rows_lse),
    }
    _forward(rows_q, k, v, lengths, shared, call)
    if header.is_fd:
        _combine(shared, call)
    rows_out.deliver()
    if rows_lse is not None:
        rows_lse.deliver()


def _sequence_axis(problem: AttnProblem) -> int:
    """Bound of the query lengths that the tensor sets."""
    return problem.total_q if problem.layout_q == "TND" else problem.seqlen_q


def _forward(
    rows_q: RowOperand,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: Lengths,
    shared: dict[str, object],
    call: PreparedCall,
) -> None:
    from fa_triton.kernels.attn_forward import attn_forward

    problem, header = call.problem, call.header
    win_left, win_right = problem.window
    by_k, by_v = strides(k, problem.layout_kv), strides(v, problem.layout_kv)
    runner(attn_forward)[(header.num_sections * header.num_aic,)](
        q=rows_q.tensor,
        k=k,
        v=v,
        cu_seqlens_kv=lengths.cu_seqlens_kv,
        seqused_kv=lengths.seqused_kv,
        block_kv=header.block_kv,
        num_aic=header.num_aic,
        softmax_scale=problem.softmax_scale,
        seqlen_kv=problem.total_kv if problem.layout_kv == "TND" else problem.seqlen_kv,
        win_left=win_left,
        win_right=win_right,
        units_per_kv=call.units.units_per_kv,
        stride_kb=by_k.outer,
        stride_kn=by_k.head,
        stride_ks=by_k.token,
        stride_vb=by_v.outer,
        stride_vn=by_v.head,
        stride_vs=by_v.token,
        **_row_stride_arguments("q", rows_q),
        **shared,
        **dict(call.forward.constants),
        variant=call.forward.key,
    )


def _combine(shared: dict[str, object], call: PreparedCall) -> None:
    from fa_triton.kernels.attn_combine import attn_combine

    header = call.header
    runner(attn_combine)[(header.num_sections * header.num_aiv,)](
        ranges_word=header.vectors_offset,
        tasks_word=header.vectors_offset if header.is_section_stream_k else header.tasks_offset,
        num_aiv=header.num_aiv,
        **shared,
        **dict(call.combine.constants),
        variant=call.combine.key,
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
