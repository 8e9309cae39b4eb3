"""Axes of the layouts of linear attention: those of dense attention, and packed head-major NTD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa_triton.layout import DENSE_LAYOUTS, Extents, LayoutAxes, Strides

if TYPE_CHECKING:
    import torch

KDA_LAYOUTS: dict[str, LayoutAxes] = DENSE_LAYOUTS | {
    "NTD": LayoutAxes(rank=3, outer=None, token=1, head=0, dims=(2,)),
}
# without a batch axis
PACKED_LAYOUTS = ("TND", "NTD")
KDA_LAYOUT_SHAPES: dict[str, str] = {
    "BSND": "(B, T, N, D)",
    "BNSD": "(B, N, T, D)",
    "TND": "(T, N, D)",
    "NTD": "(N, T, D)",
}


def kda_extents(tensor: torch.Tensor, layout: str) -> Extents:
    """Sizes by meaning of a tensor ``[.., D]`` of this layout, whose rank must fit."""
    axes = KDA_LAYOUTS[layout]
    return Extents(
        outer=1 if axes.outer is None else tensor.shape[axes.outer],
        tokens=tensor.shape[axes.token],
        heads=tensor.shape[axes.head],
        head_dim=tensor.shape[axes.dims[0]],
    )


def kda_strides(tensor: torch.Tensor, layout: str) -> Strides:
    """Strides in elements of a tensor ``[.., D]``, or of one without D such as beta."""
    axes = KDA_LAYOUTS[layout]
    return Strides(
        outer=0 if axes.outer is None else tensor.stride(axes.outer),
        token=tensor.stride(axes.token),
        head=tensor.stride(axes.head),
    )


def without_dim(layout: str) -> str:
    """Shape in words of a tensor of this layout that has no axis D."""
    return KDA_LAYOUT_SHAPES[layout].replace(", D)", ")")
