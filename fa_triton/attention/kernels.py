"""Launches of the two phases: forward over the plan, then the combine of the rows it cut."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.attention.operands import (
    RowOperand,
    head_table,
    lse_operand,
    output_operand,
    query_operand,
    scale_operands,
)
from fa_triton.attention.prepared import PreparedCall
from fa_triton.attention.repeats import Repeat, keep, launch_again, repeat_key
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
        acc: ``[slots, block_q, DV]`` fp32, DV the columns of the tiles of v.
        max: ``[slots, block_q]`` fp32.
        sum: ``[slots, block_q]`` fp32.
    """

    acc: torch.Tensor
    max: torch.Tensor
    sum: torch.Tensor

    @staticmethod
    def allocate(header: Header, columns: int, device: torch.device) -> Workspace:
        """Take memory for every slot of a plan, one at least."""
        slots = max(header.num_slots, 1)
        rows = (slots, header.block_q)
        return Workspace(
            acc=torch.empty((*rows, columns), dtype=torch.float32, device=device),
            max=torch.empty(rows, dtype=torch.float32, device=device),
            sum=torch.empty(rows, dtype=torch.float32, device=device),
        )


@dataclass(frozen=True)
class HeadTensors:
    """Values per query head, fp32 ``[Nq]``; None where the call has none."""

    sinks: torch.Tensor | None
    alibi_slopes: torch.Tensor | None


@dataclass(frozen=True)
class KeyTensors:
    """Keys and values, and the block table where they lie in pages."""

    k: torch.Tensor
    v: torch.Tensor
    block_table: torch.Tensor | None


@dataclass(frozen=True)
class CacheTensors:
    """What keys and values have beside themselves; None where ``CacheForm`` says so.

    Attributes:
        places: ``[B, 4]`` int64: elements from k and from v to the first key of each sequence, and
            the strides of its heads in both.
        first_columns: ``[B]`` int32, the column of bias, mask and scales of that key.
        bias: Rows of q with a bias per key ``[.., Sq, N, S']``, dtype of q.
        key_mask: Likewise, int8, nonzero where a key is hidden.
        hidden_logit: Of such a key.
        scale: Scales of K and of V, fp32: ``[2, Nkv, D]`` per channel; ``[2, B, Nkv, S']`` or
            ``[2, P, Nkv, page]`` per token, strides may be 0.
        offset: Likewise, offsets.
    """

    places: torch.Tensor | None = None
    first_columns: torch.Tensor | None = None
    bias: RowOperand | None = None
    key_mask: RowOperand | None = None
    hidden_logit: float = 0.0
    scale: torch.Tensor | None = None
    offset: torch.Tensor | None = None


def run_attention(
    q: torch.Tensor,
    keys: KeyTensors,
    heads: HeadTensors,
    lengths: Lengths,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    table: torch.Tensor,
    call: PreparedCall,
    cache: CacheTensors | None = None,
) -> Repeat | None:
    """Write attention of q over the keys to ``out`` and ``lse`` as the plan ``table`` says.

    Returns:
        What calls of the same tensors elsewhere can repeat; None where there is no such thing.
    """
    key = repeat_key(q, keys, heads, lengths, out, lse, call, cache)
    repeat = None
    if key is not None:
        repeat = launch_again(key, q, keys, lengths, out, lse, table, cache)
        if repeat is not None:
            return repeat
    problem, header, units = call.problem, call.header, call.units
    rows_q = query_operand(q, problem, units)
    rows_out = output_operand(out, problem, units, call.needs_fill)
    rows_lse = None if lse is None else lse_operand(lse, problem, units, call.needs_fill)
    per_head, stride_head = _head_tables(heads, call)
    work = Workspace.allocate(header, call.columns, q.device)
    shared = {
        "cu_seqlens_q": lengths.cu_seqlens_q,
        "seqused_q": lengths.seqused_q,
        "sinks": per_head["sinks"],
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
        "head_dim_v": problem.head_dim_v,
        "num_units": units.num_units,
        "stride_head": stride_head,
        **_row_stride_arguments("o", rows_out),
        **_row_stride_arguments("l", rows_lse),
    }
    beside = {} if cache is None else _cache_arguments(cache)
    arguments = _forward_arguments(
        rows_q, keys, per_head["alibi_slopes"], lengths, {**shared, **beside}, call
    )
    from fa_triton.kernels.attn_forward import attn_forward

    grid = (header.num_sections * header.num_aic,)
    runner(attn_forward)[grid](**arguments, variant=call.forward.key)
    if key is not None:
        repeat = keep(key, call, runner(attn_forward).bind(grid, **arguments), work)
    if header.is_fd:
        _combine(shared, call)
    rows_out.deliver()
    if rows_lse is not None:
        rows_lse.deliver()
    return repeat


def _head_tables(
    heads: HeadTensors, call: PreparedCall
) -> tuple[dict[str, torch.Tensor | None], int]:
    """Values per head as the kernels read them, and the stride of their units."""
    tables: dict[str, torch.Tensor | None] = {}
    stride = 0
    for name, values in vars(heads).items():
        tables[name] = None
        if values is not None:
            rows = max(call.tile.block_q, call.tile.combine_rows)
            tables[name], stride = head_table(values, call.units, rows)
    return tables, stride


def _sequence_axis(problem: AttnProblem) -> int:
    """Bound of the query lengths that the tensor sets."""
    return problem.total_q if problem.layout_q == "TND" else problem.seqlen_q


def _forward_arguments(
    rows_q: RowOperand,
    keys: KeyTensors,
    alibi_slopes: torch.Tensor | None,
    lengths: Lengths,
    shared: dict[str, object],
    call: PreparedCall,
) -> dict[str, object]:
    """Arguments of the forward kernel by name."""
    problem, header = call.problem, call.header
    win_left, win_right = problem.window
    return dict(
        q=rows_q.tensor,
        cu_seqlens_kv=lengths.cu_seqlens_kv,
        seqused_kv=lengths.seqused_kv,
        block_kv=header.block_kv,
        num_aic=header.num_aic,
        softmax_scale=call.logit_scale,
        softcap=problem.softcap,
        seqlen_kv=problem.total_kv if problem.layout_kv == "TND" else problem.seqlen_kv,
        head_dim=problem.head_dim,
        win_left=win_left,
        win_right=win_right,
        units_per_kv=call.units.units_per_kv,
        page_size=problem.page_size,
        stride_table=0 if keys.block_table is None else keys.block_table.stride(0),
        **_key_stride_arguments("k", keys.k, problem.layout_kv),
        **_key_stride_arguments("v", keys.v, problem.layout_kv),
        **_row_stride_arguments("q", rows_q),
        **vars(keys),
        alibi_slopes=alibi_slopes,
        **shared,
        **dict(call.forward.constants),
    )


def _cache_arguments(cache: CacheTensors) -> dict[str, object]:
    """Arguments of the forward kernel that ``flash_attn`` leaves out."""
    arguments: dict[str, object] = {
        "kv_places": cache.places,
        "first_columns": cache.first_columns,
    }
    if cache.bias is not None:
        arguments["bias"] = cache.bias.tensor
        arguments |= _per_key_strides("x", cache.bias)
    if cache.key_mask is not None:
        arguments |= {"key_mask": cache.key_mask.tensor, "mask_fill": cache.hidden_logit}
        arguments |= _per_key_strides("m", cache.key_mask)
    arguments |= scale_operands(cache.scale, cache.offset)
    if cache.scale is not None and cache.scale.ndim > 3:
        # per token; offsets have the same strides
        arguments |= {"stride_cb": cache.scale.stride(1), "stride_cn": cache.scale.stride(2)}
    return arguments


def _per_key_strides(name: str, rows: RowOperand) -> dict[str, int]:
    by = rows.strides
    return {f"stride_{name}b": by.batch, f"stride_{name}n": by.unit, f"stride_{name}r": by.row}


def _combine(shared: dict[str, object], call: PreparedCall) -> None:
    from fa_triton.kernels.attn_combine import attn_combine

    header = call.header
    runner(attn_combine)[(header.num_sections * header.num_aiv,)](
        ranges_word=header.vectors_offset,
        tasks_word=header.vectors_offset if header.is_section_stream_k else header.tasks_offset,
        num_aiv=header.num_aiv,
        planned_columns=call.problem.head_dim,
        **shared,
        **dict(call.combine.constants),
        variant=call.combine.key,
    )


def _key_stride_arguments(name: str, tensor: torch.Tensor, layout: str) -> dict[str, int]:
    by = strides(tensor, layout)
    return {
        f"stride_{name}b": by.outer,
        f"stride_{name}n": by.head,
        f"stride_{name}s": by.token,
        f"stride_{name}d": by.fractal,
    }


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
