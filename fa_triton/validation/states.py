"""The contract of ``merge_attn_states``."""

from __future__ import annotations

import torch

from fa_triton.layout import DENSE_LAYOUTS, LAYOUT_SHAPES, extents
from fa_triton.validation.scalars import one_of
from fa_triton.validation.tensors import (
    FLOAT_DTYPES,
    check_device,
    check_is_tensor,
    refuse_gradient,
)


def validate_states(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    layout: str,
) -> None:
    """Check every argument of ``merge_attn_states``.

    Raises:
        ValueError: A shape or device that does not fit.
        TypeError: A dtype that does not fit.
        NotImplementedError: A part that requires a gradient.
    """
    check_states_form(out_a, lse_a, out_b, lse_b, layout)
    sizes = extents(out_a, layout)
    lse_shape = (sizes.heads, sizes.tokens)
    if layout != "TND":
        lse_shape = (sizes.outer, *lse_shape)
    for name, tensor, shape in (
        ("out_b", out_b, tuple(out_a.shape)),
        ("lse_a", lse_a, lse_shape),
        ("lse_b", lse_b, lse_shape),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"`{name}` must have shape {shape}, got {tuple(tensor.shape)}")


def check_states_form(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    layout: str,
) -> None:
    """Check what does not depend on sizes."""
    one_of("layout", layout, tuple(DENSE_LAYOUTS))
    named = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    for name, tensor in named.items():
        refuse_gradient(name, check_is_tensor(name, tensor))
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
    for name in ("lse_a", "out_b", "lse_b"):
        check_device(name, named[name], out_a.device, like="out_a")
    for name in ("lse_a", "lse_b"):
        if named[name].dtype != torch.float32:
            raise TypeError(f"`{name}` must have dtype torch.float32, got {named[name].dtype}")
