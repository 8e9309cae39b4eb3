"""Axes of the tensor layouts: the one place that knows where tokens, heads and pages lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LayoutAxes:
    """Positions of the axes of one layout; ``outer`` is the batch or the page axis."""

    rank: int
    outer: int | None
    token: int
    head: int
    dims: tuple[int, ...]


DENSE_LAYOUTS: dict[str, LayoutAxes] = {
    "BSND": LayoutAxes(rank=4, outer=0, token=1, head=2, dims=(3,)),
    "BNSD": LayoutAxes(rank=4, outer=0, token=2, head=1, dims=(3,)),
    "TND": LayoutAxes(rank=3, outer=None, token=0, head=1, dims=(2,)),
}
PAGED_LAYOUTS: dict[str, LayoutAxes] = {
    "PA_BBND": LayoutAxes(rank=4, outer=0, token=1, head=2, dims=(3,)),
    "PA_BNBD": LayoutAxes(rank=4, outer=0, token=2, head=1, dims=(3,)),
    "PA_NZ": LayoutAxes(rank=5, outer=0, token=3, head=1, dims=(2, 4)),
}
LAYOUTS: dict[str, LayoutAxes] = DENSE_LAYOUTS | PAGED_LAYOUTS

# PA_NZ cuts the head dimension into fractals of this many elements.
FRACTAL = 16

LAYOUT_SHAPES: dict[str, str] = {
    "BSND": "(B, S, N, D)",
    "BNSD": "(B, N, S, D)",
    "TND": "(T, N, D)",
    "PA_BBND": "(P, page, N, D)",
    "PA_BNBD": "(P, N, page, D)",
    "PA_NZ": "(P, N, D/16, page, 16)",
}

KV_LAYOUTS_OF: dict[str, tuple[str, ...]] = {
    layout: (layout, *PAGED_LAYOUTS) for layout in DENSE_LAYOUTS
}
OUT_LAYOUTS_OF: dict[str, tuple[str, ...]] = {
    "BSND": ("BSND",),
    "BNSD": ("BNSD", "BSND"),
    "TND": ("TND",),
}


@dataclass(frozen=True)
class Extents:
    """Sizes of a tensor by meaning; ``outer`` counts sequences, pages, or is 1 for TND."""

    outer: int
    tokens: int
    heads: int
    head_dim: int


@dataclass(frozen=True)
class Strides:
    """Strides in elements by meaning.

    Attributes:
        outer: From one sequence or page to the next, 0 for TND.
        token: From one token to the next.
        head: From one head to the next.
        fractal: From one piece of the head dimension to the next in PA_NZ, else 0.
    """

    outer: int
    token: int
    head: int
    fractal: int = 0


def is_paged(layout: str) -> bool:
    """Whether K and V of this layout lie in the pages of a cache."""
    return layout in PAGED_LAYOUTS


def extents(tensor: torch.Tensor, layout: str) -> Extents:
    """Sizes of ``tensor``, whose rank must be that of ``layout``."""
    axes = LAYOUTS[layout]
    shape = tensor.shape
    head_dim = 1
    for dim in axes.dims:
        head_dim *= shape[dim]
    return Extents(
        outer=1 if axes.outer is None else shape[axes.outer],
        tokens=shape[axes.token],
        heads=shape[axes.head],
        head_dim=head_dim,
    )


def strides(tensor: torch.Tensor, layout: str) -> Strides:
    """Strides of ``tensor`` in elements: what a kernel needs besides the dense last axis."""
    axes = LAYOUTS[layout]
    return Strides(
        outer=0 if axes.outer is None else tensor.stride(axes.outer),
        token=tensor.stride(axes.token),
        head=tensor.stride(axes.head),
        fractal=tensor.stride(axes.dims[0]) if len(axes.dims) > 1 else 0,
    )


def lse_strides(lse: torch.Tensor, layout_q: str) -> Strides:
    """Strides of the log-sum-exp ``(B, Nq, Sq)``, or ``(Nq, Tq)`` for TND queries."""
    if layout_q == "TND":
        return Strides(outer=0, token=lse.stride(1), head=lse.stride(0))
    return Strides(outer=lse.stride(0), token=lse.stride(2), head=lse.stride(1))


def dense_shape(
    layout: str, *, batch_size: int, tokens: int, num_heads: int, head_dim: int
) -> tuple[int, ...]:
    """Shape of a dense tensor; ``tokens`` is the sequence axis S, or T for TND."""
    shape = [0] * DENSE_LAYOUTS[layout].rank
    axes = DENSE_LAYOUTS[layout]
    if axes.outer is not None:
        shape[axes.outer] = batch_size
    shape[axes.token] = tokens
    shape[axes.head] = num_heads
    shape[axes.dims[0]] = head_dim
    return tuple(shape)
