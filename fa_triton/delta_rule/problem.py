"""A validated call of the chunked forward: sizes and options, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from fa_triton.delta_rule.shapes import ResultShapes

if TYPE_CHECKING:
    import torch

    from fa_triton.validation.delta_rule import DeltaRuleSizes, GateOptions

RESULT_NAMES = (
    "attn_out",
    "final_state",
    "gk",
    "Aqk",
    "Akk",
    "w",
    "u",
    "qg",
    "kg",
    "v_new",
    "h",
)


class GateCallOptions(TypedDict, total=False):
    """Keyword arguments that say what becomes of the gate."""

    layout: str
    cu_seqlens: torch.Tensor | Sequence[int] | None
    safe_gate: bool
    lower_bound: float | None
    use_gate_in_kernel: bool
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None


class ChunkKdaOptions(GateCallOptions, total=False):
    """Keyword arguments that ``chunk_kda_fwd`` and ``chunk_kda`` share, but for states."""

    scale: float | None
    chunk_size: int
    chunk_indices: torch.Tensor | Sequence[Any] | None
    state_v_first: bool
    use_qk_l2norm_in_kernel: bool
    use_beta_sigmoid_in_kernel: bool
    allow_neg_eigval: bool


@dataclass(frozen=True)
class ChunkKdaProblem:
    """What the chunked forward is to compute.

    Attributes:
        layout: Of q, k, v, g and beta.
        sizes: Of these tensors.
        gate: How raw gates become decays.
        has_beta_sigmoid: Whether beta goes through a sigmoid.
        beta_scale: Factor on beta after the sigmoid.
        chunk_size: Tokens of a chunk, C.
        num_sequences: N; the batch size where nothing is packed.
        is_packed: Whether ``cu_seqlens`` separates sequences.
        scale: Factor on the result.
        state_v_first: Whether states are ``[V, K]``.
        has_qk_norm: Whether rows of q and k are normalised.
        has_initial_state: Whether sequences start from given states.
        has_state_indices: Whether these lie in a pool.
        has_state_mask: Whether a mask tells which sequences have one.
        state_dtype: Dtype of initial and final states.
        results: Names of what is returned.
    """

    layout: str
    sizes: DeltaRuleSizes
    gate: GateOptions
    has_beta_sigmoid: bool
    beta_scale: float
    chunk_size: int
    num_sequences: int
    is_packed: bool
    scale: float
    state_v_first: bool
    has_qk_norm: bool
    has_initial_state: bool
    has_state_indices: bool
    has_state_mask: bool
    state_dtype: torch.dtype
    results: tuple[str, ...]

    def shapes(self, chunks_per_entry: int) -> ResultShapes:
        """Shapes of the results where a batch entry has so many chunks."""
        sizes = self.sizes
        return ResultShapes(
            batch_size=sizes.batch_size,
            num_tokens=sizes.num_tokens,
            num_v_heads=sizes.num_v_heads,
            key_dim=sizes.key_dim,
            value_dim=sizes.value_dim,
            chunk_size=self.chunk_size,
            num_sequences=self.num_sequences,
            chunks_per_entry=chunks_per_entry,
            state_v_first=self.state_v_first,
        )

    def wants(self, *names: str) -> bool:
        """Whether one of these results is returned."""
        return not set(names).isdisjoint(self.results)
