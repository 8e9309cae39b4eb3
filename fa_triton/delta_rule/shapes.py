"""Shapes of what the chunked forward computes; sizes may be symbols of a traced graph."""

from __future__ import annotations

from dataclasses import dataclass


def state_shape(
    num_v_heads: int, key_dim: int, value_dim: int, *, is_v_first: bool
) -> tuple[int, int, int]:
    """Shape of the states of one sequence."""
    if is_v_first:
        return num_v_heads, value_dim, key_dim
    return num_v_heads, key_dim, value_dim


@dataclass(frozen=True)
class ResultShapes:
    """Sizes that decide, for inputs of rank 4.

    Attributes:
        batch_size: B.
        num_tokens: T.
        num_v_heads: HV.
        key_dim: K.
        value_dim: V.
        chunk_size: C.
        num_sequences: N.
        chunks_per_entry: Nc.
        state_v_first: Whether states are ``[V, K]``.
    """

    batch_size: int
    num_tokens: int
    num_v_heads: int
    key_dim: int
    value_dim: int
    chunk_size: int
    num_sequences: int
    chunks_per_entry: int
    state_v_first: bool

    @property
    def state(self) -> tuple[int, int, int]:
        """States of one sequence."""
        return state_shape(
            self.num_v_heads, self.key_dim, self.value_dim, is_v_first=self.state_v_first
        )

    def of(self, name: str) -> tuple[int, ...]:
        """Shape of the result of this name."""
        if name == "attn_out":
            return self.batch_size, self.num_tokens, self.num_v_heads, self.value_dim
        if name == "final_state":
            return self.num_sequences, *self.state
        if name == "h":
            return self.batch_size, self.chunks_per_entry, *self.state
        columns = self.key_dim
        if name in ("Aqk", "Akk"):
            columns = self.chunk_size
        elif name in ("u", "v_new"):
            columns = self.value_dim
        return self.batch_size, self.num_v_heads, self.num_tokens, columns
