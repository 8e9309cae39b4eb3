"""Merging the attention of one set of queries over two disjoint sets of keys."""

from __future__ import annotations

import torch

from fa_triton.layout import DENSE_LAYOUTS, LAYOUT_SHAPES, extents
from fa_triton.validation.scalars import one_of
from fa_triton.validation.tensors import FLOAT_DTYPES, check_device, check_is_tensor


def merge_attn_states(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    *,
    layout: str = "TND",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge two results of ``flash_attn`` for the same queries over disjoint keys.

    Serves attention to a shared prefix (cascade) and context parallelism. The merge is associative
    and symmetric up to rounding.

    Args:
        out_a: First result in ``layout``, fp16, bf16 or fp32.
        lse_a: Its log-sum-exp, fp32: ``(B, Nq, Sq)``, or ``(Nq, Tq)`` for TND. +inf and -inf both
            mean that the row saw no key; its result is then not read.
        out_b: Second result, shape, dtype and device of the first.
        lse_b: Its log-sum-exp.
        layout: Layout of the results: TND, BSND or BNSD.

    Returns:
        out in the dtype of ``out_a``; lse fp32, natural log. A row that saw no key in either part
        is 0 and +inf.

    Raises:
        ValueError: A shape or device that does not fit.
        TypeError: A dtype that does not fit.

    Notes: Deterministic, elementwise in fp32, never synchronises. A log-sum-exp that counts a sink
        would count it twice: merge those that exclude it.
    """
    layout = one_of("layout", layout, tuple(DENSE_LAYOUTS))
    _check(out_a, lse_a, out_b, lse_b, layout)
    empty_a, empty_b = torch.isinf(lse_a), torch.isinf(lse_b)
    filled_a = lse_a.masked_fill(empty_a, -torch.inf)
    filled_b = lse_b.masked_fill(empty_b, -torch.inf)
    m = torch.maximum(filled_a, filled_b)
    m = m.masked_fill(empty_a & empty_b, 0.0)
    weight_a, weight_b = torch.exp(filled_a - m), torch.exp(filled_b - m)
    total = weight_a + weight_b
    none = total == 0
    lse = (m + torch.log(total)).masked_fill(none, torch.inf)
    total = total.masked_fill(none, 1.0)
    # The result of an empty part may be anything, NaN included: select, do not multiply by 0.
    part_a = _rows(weight_a / total, layout) * out_a.float()
    part_b = _rows(weight_b / total, layout) * out_b.float()
    out = torch.where(_rows(empty_a, layout), 0.0, part_a)
    out = out + torch.where(_rows(empty_b, layout), 0.0, part_b)
    return out.to(out_a.dtype), lse


def _rows(per_row: torch.Tensor, layout: str) -> torch.Tensor:
    """Bring values per row from the order of the log-sum-exp into that of the result."""
    if layout != "BNSD":
        per_row = per_row.transpose(-1, -2)
    return per_row.unsqueeze(-1)


def _check(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    layout: str,
) -> None:
    named = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    for name, tensor in named.items():
        check_is_tensor(name, tensor)
    rank = DENSE_LAYOUTS[layout].rank
    if out_a.ndim != rank:
        raise ValueError(
            f"`out_a` must have {rank} axes {LAYOUT_SHAPES[layout]} in layout {layout}, "
            f"got shape {tuple(out_a.shape)}"
        )
    if out_a.dtype not in FLOAT_DTYPES:
        raise TypeError(f"`out_a` must have dtype float16, bfloat16, float32, got {out_a.dtype}")
    if out_b.dtype != out_a.dtype:
        raise TypeError(f"`out_b` must have the dtype of out_a, {out_a.dtype}, got {out_b.dtype}")
    sizes = extents(out_a, layout)
    lse_shape = (sizes.heads, sizes.tokens)
    if layout != "TND":
        lse_shape = (sizes.outer, *lse_shape)
    shapes = {"out_b": tuple(out_a.shape), "lse_a": lse_shape, "lse_b": lse_shape}
    for name, shape in shapes.items():
        tensor = named[name]
        if tuple(tensor.shape) != shape:
            raise ValueError(f"`{name}` must have shape {shape}, got {tuple(tensor.shape)}")
        check_device(name, tensor, out_a.device, like="out_a")
    for name in ("lse_a", "lse_b"):
        if named[name].dtype != torch.float32:
            raise TypeError(f"`{name}` must have dtype torch.float32, got {named[name].dtype}")
