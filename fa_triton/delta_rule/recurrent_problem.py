"""Frozen description of one validated call of ``recurrent_kda``: sizes and options, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from fa_triton.delta_rule.layouts import PACKED_LAYOUTS
from fa_triton.delta_rule.shapes import state_shape

if TYPE_CHECKING:
    import torch

    from fa_triton.validation.delta_rule import DeltaRuleSizes, GateOptions


class RecurrentOptions(TypedDict, total=False):
    """Arguments of ``recurrent_kda`` besides operands and state, but for where the state goes."""

    cu_seqlens: torch.Tensor | None
    ssm_state_indices: torch.Tensor | None
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    num_accepted_tokens: torch.Tensor | None
    layout: str
    scale: float | None
    state_v_first: bool
    use_qk_l2norm_in_kernel: bool
    use_gate_in_kernel: bool
    use_beta_sigmoid_in_kernel: bool
    allow_neg_eigval: bool
    safe_gate: bool
    lower_bound: float | None
    skip_index_below: int


@dataclass(frozen=True, kw_only=True)
class RecurrentProblem:
    """One validated call.

    Attributes:
        layout: Of q, k, v, raw_gate and beta.
        sizes: Of these tensors, with their dtypes.
        gate: How raw gates become decays.
        has_beta_sigmoid: Whether beta goes through a sigmoid.
        beta_scale: Factor on beta after the sigmoid.
        num_sequences: N.
        num_slots: States that ``state`` holds.
        state_dtype: Its dtype.
        state_v_first: Whether its rows are channels of V.
        scale: Factor of the result.
        has_l2norm: Whether q and k are normalised first.
        has_cu_seqlens: Whether sequences are packed.
        num_steps: Columns of the state indices; 0 without indices.
        has_step_slots: Whether every step has a slot of its own, as in speculative decoding.
        has_accepted: Whether the first state is that of an accepted step.
        skip_index_below: Indices below it are not followed.
        in_place: Whether ``state`` takes the new states.
        wants_final_state: Whether the new states are returned.
    """

    layout: str
    sizes: DeltaRuleSizes
    gate: GateOptions
    has_beta_sigmoid: bool
    beta_scale: float
    num_sequences: int
    num_slots: int
    state_dtype: torch.dtype
    state_v_first: bool
    scale: float
    has_l2norm: bool
    has_cu_seqlens: bool
    num_steps: int
    has_step_slots: bool
    has_accepted: bool
    skip_index_below: int
    in_place: bool
    wants_final_state: bool

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result, token-major: ``(B, T, HV, V)``, or ``(T, HV, V)`` if packed."""
        sizes = self.sizes
        shape = (sizes.num_tokens, sizes.num_v_heads, sizes.value_dim)
        return shape if self.layout in PACKED_LAYOUTS else (sizes.batch_size, *shape)

    @property
    def final_shape(self) -> tuple[int, ...]:
        """Shape of new states, one per sequence."""
        sizes, v_first = self.sizes, self.state_v_first
        shape = state_shape(sizes.num_v_heads, sizes.key_dim, sizes.value_dim, is_v_first=v_first)
        return self.num_sequences, *shape

    @property
    def leaves_rows(self) -> bool:
        """Whether rows of the result may belong to no sequence that is computed."""
        return self.has_cu_seqlens or self.num_steps > 0
