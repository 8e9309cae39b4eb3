"""Mask modes, windows and the mask template."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.problem import CAUSAL, NO_MASK, WINDOW
from fa_triton.validation.scalars import as_int
from fa_triton.validation.tensors import check_is_tensor

TEMPLATE_SHAPE = (2048, 2048)
# No sequence is this long, and `row + width` still fits into an int32.
UNLIMITED_WIDTH = 2**30


@dataclass(frozen=True)
class Mask:
    """Checked mask arguments; -1 is an unlimited side."""

    mode: int
    win_left: int
    win_right: int


def check_mask(
    mask_mode: object, win_left: object, win_right: object, attn_mask: object = None
) -> Mask:
    """Check the mask arguments, alone and together.

    A window of 2^30 keys or more is reported as unlimited (-1), which is the same mask.
    """
    mode = as_int("mask_mode", mask_mode, none_is=NO_MASK)
    if mode not in (NO_MASK, CAUSAL, WINDOW):
        raise ValueError(f"`mask_mode` must be 0 (none), 3 (causal) or 4 (window), got {mode}")
    left = as_int("win_left", win_left, none_is=-1, minimum=-1)
    right = as_int("win_right", win_right, none_is=-1, minimum=-1)
    if mode != WINDOW:
        for name, width in (("win_left", left), ("win_right", right)):
            if width != -1:
                raise ValueError(
                    f"`{name}` must be -1 with mask_mode={mode} (windows belong to mask_mode 4), "
                    f"got {width}"
                )
    if attn_mask is not None:
        _check_template(mode, attn_mask)
    return Mask(mode, as_width(left), as_width(right))


def as_width(width: int) -> int:
    """Return a window's width; one that no sequence reaches is unlimited, -1."""
    return -1 if width >= UNLIMITED_WIDTH else width


def _check_template(mode: int, attn_mask: object) -> None:
    if mode == NO_MASK:
        raise ValueError("`attn_mask` must be None with mask_mode=0, got a tensor")
    template = check_is_tensor("attn_mask", attn_mask)
    if template.dtype != torch.int8:
        raise TypeError(f"`attn_mask` must have dtype torch.int8, got {template.dtype}")
    if tuple(template.shape) != TEMPLATE_SHAPE:
        raise ValueError(
            f"`attn_mask` must be the template of shape {TEMPLATE_SHAPE}, triu(ones, 1) (the mask "
            f"itself is computed from mask_mode), got shape {tuple(template.shape)}"
        )
