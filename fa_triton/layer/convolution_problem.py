"""Frozen descriptions of validated calls of the short convolutions: sizes and options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class ConvolutionProblem:
    """One validated call of ``causal_conv1d_fn`` or ``causal_conv1d_update``.

    Attributes:
        num_sequences: N.
        num_tokens: Tokens of one sequence, or of all packed ones.
        longest: Upper bound of the tokens of one sequence.
        dim: Channels.
        width: Taps of the filter.
        dtype: Of x and the result.
        weight_dtype: Of weight.
        bias_dtype: Of bias; None without one.
        state_dtype: Of the states; None without them.
        num_slots: States there are; 0 without them.
        num_columns: Tokens that one of them has room for.
        is_packed: Whether starts separate the sequences.
        has_accepted: Whether states are windows of speculative steps.
        has_silu: Whether the result is activated.
        pad_slot_id: Slot that says that there is no sequence.
    """

    num_sequences: int
    num_tokens: int
    longest: int
    dim: int
    width: int
    dtype: torch.dtype
    weight_dtype: torch.dtype
    bias_dtype: torch.dtype | None
    state_dtype: torch.dtype | None
    num_slots: int
    num_columns: int
    is_packed: bool
    has_accepted: bool
    has_silu: bool
    pad_slot_id: int
