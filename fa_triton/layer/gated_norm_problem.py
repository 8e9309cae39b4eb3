"""Frozen description of one validated call of ``rms_norm_gated``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class GatedNormProblem:
    """One validated call.

    Attributes:
        dim: Columns of a row.
        dtype: Of x and the result.
        gate_dtype: Of the gate.
        weight_dtype: Of weight.
        bias_dtype: Of bias; None without one.
        eps: Added to the mean of squares.
        has_silu: Whether the gate is ``g sigmoid(g)`` instead of ``sigmoid(g)``.
    """

    dim: int
    dtype: torch.dtype
    gate_dtype: torch.dtype
    weight_dtype: torch.dtype
    bias_dtype: torch.dtype | None
    eps: float
    has_silu: bool
