"""Take the padding out of a batch: dense tensors to the packed layout TND, and back.

A decoder batch is padded on the left, so no trailing length describes it. The real tokens of all
sequences are gathered one after the other instead. Keys that are hidden as padding are hidden from
every query, so a causal mask on the gathered tokens is the causal mask of the real ones, wherever
the padding was.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Where the real tokens of a padded batch lie. One object serves all layers of a step.

    Attributes:
        q_length: Length of the query axis; the queries are the last tokens of the batch.
        q_lens: Real queries per sequence, on the host.
        kv_lens: Real keys per sequence, on the host.
        q_rows: Rows of the real queries among ``B * Sq``; None if every query is real.
        kv_batch: Sequence of every real key ``[T]``, int64.
        kv_position: Position of every real key on the key axis ``[T]``, int64.
        plans: Plans made for this batch, by whatever they depend on besides its lengths.
    """

    q_length: int
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    q_rows: Tensor | None
    kv_batch: Tensor
    kv_position: Tensor
    plans: dict[Hashable, Tensor] = field(default_factory=dict, init=False, repr=False)
    _kv_rows: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def cu_seqlens_q(self) -> Tensor:
        """Start of every sequence among the gathered queries ``[B + 1]``, int32."""
        return cumulative(self.q_lens).to(self.kv_batch.device)

    @cached_property
    def cu_seqlens_kv(self) -> Tensor:
        """Start of every sequence among the gathered keys ``[B + 1]``, int32."""
        return cumulative(self.kv_lens).to(self.kv_batch.device)

    @cached_property
    def has_holes(self) -> bool:
        """Whether padding lies between real tokens, so that gathering changes distances."""
        same_sequence = self.kv_batch.diff() == 0
        return bool((same_sequence & (self.kv_position.diff() != 1)).any())

    def gather_q(self, query: Tensor) -> Tensor:
        """Gather the real queries of ``[B, Nq, Sq, D]`` into ``[T, Nq, D]``."""
        tokens = query.transpose(1, 2).flatten(0, 1)
        return tokens if self.q_rows is None else tokens.index_select(0, self.q_rows)

    def gather_kv(self, states: Tensor) -> Tensor:
        """Gather the real keys or values of ``[B, Nkv, S, D]`` into ``[T, Nkv, D]``.

        Args:
            states: Keys or values; S may exceed the tokens held (a preallocated cache).
        """
        _, num_heads, capacity, dim = states.shape
        rows = self._rows_of(num_heads, capacity)
        gathered = states.contiguous().view(-1, dim).index_select(0, rows)
        return gathered.view(-1, num_heads, dim)

    def scatter_out(self, out: Tensor) -> Tensor:
        """Put packed rows ``[T, Nq, Dv]`` back to ``[B, Sq, Nq, Dv]``; padding rows are 0."""
        dense_shape = (len(self.q_lens), self.q_length, *out.shape[1:])
        if self.q_rows is None:
            return out.view(dense_shape)
        dense = out.new_zeros(dense_shape)
        dense.flatten(0, 1).index_copy_(0, self.q_rows, out)
        return dense

    def _rows_of(self, num_heads: int, capacity: int) -> Tensor:
        """Rows of the real keys in ``[B, N, S, D]``, token by token, all heads of a token."""
        rows = self._kv_rows.get((num_heads, capacity))
        if rows is None:
            heads = torch.arange(num_heads, device=self.kv_batch.device) * capacity
            first = self.kv_batch * (num_heads * capacity) + self.kv_position
            rows = self._kv_rows[num_heads, capacity] = (first[:, None] + heads).flatten()
        return rows


def pack(mask: Tensor, q_length: int) -> PackedBatch | None:
    """Read a mask. Copies the lengths to the host: call it once per step.

    Args:
        mask: Real keys ``[B, Skv]``, bool, True where there is a token.
        q_length: Length of the query axis, at most Skv.

    Returns:
        Where the real tokens lie, or None without any padding.
    """
    q_mask = mask[:, -q_length:]
    q_lens, kv_lens = torch.stack([q_mask.sum(1), mask.sum(1)]).tolist()
    if min(kv_lens) == mask.shape[1]:
        return None
    kv_batch, kv_position = mask.nonzero(as_tuple=True)
    return PackedBatch(
        q_length=q_length,
        q_lens=tuple(q_lens),
        kv_lens=tuple(kv_lens),
        q_rows=None if min(q_lens) == q_length else q_mask.flatten().nonzero().flatten(),
        kv_batch=kv_batch,
        kv_position=kv_position,
    )


def cumulative(lens: tuple[int, ...]) -> Tensor:
    """Return the starts of sequences of the given lengths and their end ``[B + 1]``, int32."""
    starts = torch.zeros(len(lens) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(lens, dtype=torch.int64).cumsum(0)
    return starts
