"""From an attention case to the call it describes: defaults, lengths, pages, strides."""

from __future__ import annotations

import math

import numpy as np

from fa_triton.cases.call import DTYPES, CaseCall, Operand, Small, ints, mask_template
from fa_triton.cases.case import ArangeTable, AttentionCase, Range
from fa_triton.layout import FRACTAL, LAYOUTS, dense_shape, is_paged
from fa_triton.problem import NO_MASK, WINDOW
from fa_triton.validation.layouts import check_layouts

# What a list means by a window without end.
_UNLIMITED = 2147483647


def describe_attention(case: AttentionCase) -> CaseCall:
    """Describe the call of a case.

    Raises:
        ValueError: The case does not say enough, or contradicts itself.
    """
    layout_kv = case.layout_kv or case.layout_q
    layout_out = case.layout_out or case.layout_q
    check_layouts(case.layout_q, layout_kv, layout_out)
    batch_size = _batch_size(case)
    small = _small_tensors(case, layout_kv, batch_size)
    packed = case.layout_q == "TND"
    q_tokens = _last(small, "cu_seqlens_q") if packed else _required(case, "S1", case.seqlen_q)
    q_sizes = {"batch_size": batch_size, "tokens": q_tokens, "num_heads": case.num_heads_q}
    head_dim_v = case.head_dim_v or case.head_dim
    dtype = DTYPES[case.dtype]
    padded = _padded_axes(case, layout_kv)
    is_window = case.mask_mode == WINDOW
    wants_lse = bool(case.return_softmax_lse)
    lse_shape = (case.num_heads_q, q_tokens) if packed else (batch_size, case.num_heads_q, q_tokens)

    def kv(head_dim: int, value_range: Range | None) -> Operand:
        shape = _kv_shape(case, layout_kv, batch_size, small, head_dim)
        return Operand(shape, dtype, value_range, padded)

    return CaseCall(
        q=Operand(
            dense_shape(case.layout_q, **q_sizes, head_dim=case.head_dim), dtype, case.q_range
        ),
        k=kv(case.head_dim, case.k_range),
        v=kv(head_dim_v, case.v_range),
        small=small,
        options={
            "softmax_scale": case.head_dim**-0.5 if case.scale is None else case.scale,
            "mask_mode": case.mask_mode,
            "win_left": _width(case.win_left) if is_window else -1,
            "win_right": _width(case.win_right) if is_window else -1,
            "layout_q": case.layout_q,
            "layout_kv": layout_kv,
            "layout_out": layout_out,
            "return_softmax_lse": wants_lse,
        },
        out_shape=dense_shape(layout_out, **q_sizes, head_dim=head_dim_v),
        lse_shape=lse_shape if wants_lse else None,
    )


def _batch_size(case: AttentionCase) -> int:
    if case.layout_q != "TND":
        return _required(case, "B", case.batch_size)
    starts = case.cu_seqlens_q
    if not starts or len(starts) < 2:
        raise ValueError(f"`cu_seqlens_q` must hold B + 1 starts with TND, got {starts}")
    return len(starts) - 1


def _small_tensors(case: AttentionCase, layout_kv: str, batch_size: int) -> dict[str, Small]:
    """Lengths, pages and mask template that the call takes."""
    small: dict[str, Small] = {}
    if case.layout_q == "TND" and case.cu_seqlens_q:
        small["cu_seqlens_q"] = ints(case.cu_seqlens_q)
    if layout_kv == "TND":
        small["cu_seqlens_kv"] = ints(case.cu_seqlens_kv or case.cu_seqlens_q or [])
    if case.seqused_q is not None:
        small["seqused_q"] = ints(case.seqused_q)
    used_kv = case.seqused_kv
    if is_paged(layout_kv):
        if used_kv is None and case.cu_seqlens_kv:
            # the operator takes no starts with pages: lists that give them mean the lengths
            used_kv = np.diff(case.cu_seqlens_kv).tolist()
        elif used_kv is None:
            used_kv = [_required(case, "S2", case.seqlen_kv or case.seqlen_q)] * batch_size
        small["block_table"] = ints(_block_table(case, used_kv))
    if used_kv is not None:
        small["seqused_kv"] = ints(used_kv)
    if case.mask_mode != NO_MASK:
        small["attn_mask"] = mask_template()
    return small


def _kv_shape(
    case: AttentionCase,
    layout_kv: str,
    batch_size: int,
    small: dict[str, Small],
    head_dim: int,
) -> tuple[int, ...]:
    heads = case.num_heads_kv or case.num_heads_q
    if is_paged(layout_kv):
        pages = int(_values(small, "block_table").max()) + 1
        return _paged_shape(layout_kv, max(pages, 1), case.block_size or 0, heads, head_dim)
    if layout_kv == "TND":
        tokens = _last(small, "cu_seqlens_kv")
    else:
        tokens = _required(case, "S2", case.seqlen_kv or case.seqlen_q)
    return dense_shape(
        layout_kv, batch_size=batch_size, tokens=tokens, num_heads=heads, head_dim=head_dim
    )


def _required(case: AttentionCase, name: str, value: int | None) -> int:
    if value is None:
        raise ValueError(f"`{name}` must be given with layout {case.layout_q}, got none")
    return value


def _width(width: int) -> int:
    return -1 if width == _UNLIMITED else width


def _block_table(case: AttentionCase, used: list[int]) -> np.ndarray:
    """Page ids ``[B, pages]``; entries that no key needs are -1 unless the case gives them."""
    size = case.block_size
    if size is None or size < 1:
        raise ValueError(f"`block_size` must be given with paged keys, got {size}")
    if isinstance(case.block_table, ArangeTable):
        return np.arange(math.prod(case.block_table.shape)).reshape(case.block_table.shape)
    if case.block_table is not None:
        return np.array(case.block_table)
    pages = [-(-length // size) for length in used]
    longest = max(*pages, -(-(case.seqlen_kv or case.seqlen_q or 0) // size), 1)
    rows, columns = case.block_table_shape or (len(used), longest)
    if rows != len(used) or columns < max(pages):
        raise ValueError(
            f"`block_table_shape` must be at least {[len(used), max(pages)]}, got {[rows, columns]}"
        )
    table = np.full((rows, columns), -1)
    first = 0
    for row, count in zip(table, pages, strict=True):
        row[:count] = np.arange(first, first + count)
        first += count
    return table


def _paged_shape(
    layout: str, pages: int, page_size: int, num_heads: int, head_dim: int
) -> tuple[int, ...]:
    axes = LAYOUTS[layout]
    shape = [0] * axes.rank
    shape[0], shape[axes.token], shape[axes.head] = pages, page_size, num_heads
    whole, *fractal = axes.dims
    shape[whole] = head_dim // FRACTAL if fractal else head_dim
    for axis in fractal:
        shape[axis] = FRACTAL
    return tuple(shape)


def _padded_axes(case: AttentionCase, layout_kv: str) -> tuple[int, ...]:
    """The axes behind those whose strides are not dense: a longer one leaves gaps before it."""
    if case.nc_kv_dims is None:
        return ()
    dims = (case.nc_kv_dims,) if isinstance(case.nc_kv_dims, int) else case.nc_kv_dims
    if not all(0 <= dim < LAYOUTS[layout_kv].rank - 1 for dim in dims):
        raise ValueError(
            f"`nc_kv_dims` must be axes of k and v other than the last one, got {list(dims)}"
        )
    return tuple(dim + 1 for dim in dims)


def _values(small: dict[str, Small], name: str) -> np.ndarray:
    values = small[name].values
    if values is None or not values.size:
        raise ValueError(f"`{name}` must have values, got none")
    return values


def _last(small: dict[str, Small], name: str) -> int:
    return int(_values(small, name)[-1])
