"""Steps of the float64 oracle of Kimi Delta Attention: rows, chunks, and what happens to them.

Chunks of all sequences lie one after another, padded to C tokens with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from fa_triton.delta_rule.layouts import PACKED_LAYOUTS

LN2 = math.log(2.0)
_HEAD_SECOND = ("BNSD", "NTD")

# Rows of a block, whose decays against one another are taken pair by pair.
PAIR_ROWS = 16
# Decays of pairs of rows, all heads of a group of chunks.
PAIR_BYTES = 32 * 2**20


@dataclass(frozen=True)
class DeltaRuleRows:
    """What the delta rule reads, ``[B, T, heads, D]`` and beta ``[B, T, HV]``."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    beta: torch.Tensor


def batch_first(x: torch.Tensor, layout: str) -> torch.Tensor:
    """View ``[B, T, heads, ...]`` of a tensor in ``layout``."""
    if layout in PACKED_LAYOUTS:
        x = x[None]
    return x.transpose(1, 2) if layout in _HEAD_SECOND else x


def sequences_of(
    batch: int, tokens: int, cu_seqlens: torch.Tensor | Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """First token of every sequence among all ``B * T`` tokens, and lengths."""
    if cu_seqlens is None:
        return [b * tokens for b in range(batch)], [tokens] * batch
    bounds = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else list(cu_seqlens)
    return bounds[:-1], [end - start for start, end in pairwise(bounds)]


@dataclass(frozen=True)
class Chunks:
    """Which tokens, counted through all batch entries, are in which chunk.

    Attributes:
        token: ``[Nc, C]``, 0 behind the end of a sequence.
        is_token: ``[Nc, C]``, whether the place holds a token.
        first_chunk: First chunk of each sequence ``[N]``.
        num_chunks: Chunks of each sequence ``[N]``; an empty one has none.
    """

    token: torch.Tensor
    is_token: torch.Tensor
    first_chunk: torch.Tensor
    num_chunks: torch.Tensor

    @classmethod
    def of(
        cls,
        batch: int,
        tokens: int,
        chunk_size: int,
        cu_seqlens: torch.Tensor | Sequence[int] | None,
        device: torch.device,
    ) -> Chunks:
        """Lay chunks of ``chunk_size`` over all sequences."""
        starts, lengths = (
            torch.tensor(x, dtype=torch.int64, device=device)
            for x in sequences_of(batch, tokens, cu_seqlens)
        )
        num_chunks = (lengths + chunk_size - 1) // chunk_size
        first_chunk = num_chunks.cumsum(0) - num_chunks
        i_n = torch.arange(len(starts), device=device).repeat_interleave(num_chunks)
        i_local = torch.arange(len(i_n), device=device) - first_chunk[i_n]
        place = i_local[:, None] * chunk_size + torch.arange(chunk_size, device=device)
        is_token = place < lengths[i_n][:, None]
        token = torch.where(is_token, starts[i_n][:, None] + place, 0)
        return cls(token, is_token, first_chunk, num_chunks)

    @property
    def num_sequences(self) -> int:
        """N, empty ones included."""
        return len(self.num_chunks)

    def cut(self, x: torch.Tensor, which: slice = slice(None)) -> torch.Tensor:
        """Chunks ``[n, heads, C, ...]`` of ``[B, T, heads, ...]``, 0 behind the end."""
        token, is_token = self.token[which], self.is_token[which]
        x = x.flatten(0, 1)
        cut = x.new_zeros(*token.shape, *x.shape[1:])
        cut[is_token] = x[token[is_token]]
        return cut.transpose(1, 2)

    def join(self, padded: torch.Tensor, batch: int) -> torch.Tensor:
        """``[B, T, heads, ...]`` of chunks ``[Nc, heads, C, ...]``."""
        # Sequences follow one another without gaps, so these are all tokens in their order.
        joined = padded.transpose(1, 2)[self.is_token]
        return joined.reshape(batch, len(joined) // batch, *joined.shape[1:])


def head_major(chunks: Chunks, padded: torch.Tensor, batch: int, layout: str) -> torch.Tensor:
    """``[B, heads, T, ...]`` of chunks, without B for packed layouts."""
    joined = chunks.join(padded, batch).transpose(1, 2).contiguous()
    return joined[0] if layout in PACKED_LAYOUTS else joined


@dataclass(frozen=True)
class Stored:
    """What a tensor is after it was stored by one step and read by the next.

    Attributes:
        dtype: Of what is stored in 16 bit; None: nothing is rounded.
        compute: Of the arithmetic.
    """

    dtype: torch.dtype | None
    compute: torch.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Round what is stored in 16 bit."""
        return x if self.dtype is None else x.to(self.dtype).to(self.compute)

    def gate(self, gk: torch.Tensor) -> torch.Tensor:
        """Round what is stored in float32."""
        return gk if self.dtype is None else gk.float().to(self.compute)


def within_chunks(
    rows: DeltaRuleRows, chunks: Chunks, scale: float, stored: Stored
) -> dict[str, torch.Tensor]:
    """Everything that needs no state: ``[Nc, HV, C, ...]`` by name."""
    num_chunks, chunk_size = chunks.token.shape
    num_heads, head_dim = rows.a.shape[2:]
    pair_rows = min(PAIR_ROWS, chunk_size)
    bytes_per_chunk = num_heads * pair_rows**2 * head_dim * rows.a.element_size()
    step = max(1, PAIR_BYTES // bytes_per_chunk)
    groups = [
        _within_group(rows, chunks, slice(i, i + step), scale, stored)
        for i in range(0, max(num_chunks, 1), step)
    ]
    return {name: torch.cat([group[name] for group in groups]) for name in groups[0]}


def _within_group(
    rows: DeltaRuleRows, chunks: Chunks, which: slice, scale: float, stored: Stored
) -> dict[str, torch.Tensor]:
    group = rows.v.shape[2] // rows.q.shape[2]
    q, k = (chunks.cut(x, which).repeat_interleave(group, 1) for x in (rows.q, rows.k))
    v = chunks.cut(rows.v, which)
    beta = chunks.cut(rows.beta, which)[..., None]
    # Places behind the end keep the sum of the last token.
    gk = stored.gate(chunks.cut(rows.a, which).cumsum(2) / LN2)
    Aqk, Lkk = _decayed_scores(q, k, gk)
    Aqk = stored(scale * Aqk)
    eye = torch.eye(gk.shape[2], dtype=gk.dtype, device=gk.device)
    Lkk = beta * Lkk.tril(-1) + eye
    Akk = torch.linalg.solve_triangular(Lkk, eye.expand_as(Lkk), upper=False, unitriangular=True)
    Akk = stored(Akk.masked_fill(~chunks.is_token[which][:, None, :, None], 0))
    decay = torch.exp2(gk)
    return {
        "gk": gk,
        "Aqk": Aqk,
        "Akk": Akk,
        "w": stored(Akk @ stored(beta * k * decay)),
        "u": stored(Akk @ stored(beta * v)),
        "qg": stored(q * decay),
        "kg": stored(k * torch.exp2(gk[:, :, -1:] - gk)),
    }


def _decayed_scores(
    q: torch.Tensor, k: torch.Tensor, gk: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``sum_k q_ik k_jk 2^(gk_ik - gk_jk)`` for i >= j, else 0, and the same with k for q.

    Rows of one block meet pair by pair. A block meets earlier rows as a matrix product, each side
    decayed up to the first row of the block, which lies between them.
    """
    chunk_size = gk.shape[2]
    scores_q = gk.new_zeros(*gk.shape[:3], chunk_size)
    scores_k = torch.zeros_like(scores_q)
    for start in range(0, chunk_size, PAIR_ROWS):
        rows, earlier = slice(start, min(start + PAIR_ROWS, chunk_size)), slice(0, start)
        b_gk = gk[:, :, rows]
        b_q, b_k = q[:, :, rows], k[:, :, rows]
        num_rows = b_gk.shape[2]
        later = torch.ones(num_rows, num_rows, dtype=torch.bool, device=gk.device).triu(1)
        exponent = b_gk[:, :, :, None] - b_gk[:, :, None]
        exponent.masked_fill_(later[..., None], -torch.inf)
        pair = exponent.exp2_().mul_(b_k[:, :, None])
        scores_q[:, :, rows, rows] = (pair @ b_q[..., None])[..., 0]
        scores_k[:, :, rows, rows] = (pair @ b_k[..., None])[..., 0]
        if start == 0:
            continue
        between = gk[:, :, start : start + 1]
        down = torch.exp2(b_gk - between)
        up = (k[:, :, earlier] * torch.exp2(between - gk[:, :, earlier])).mT
        scores_q[:, :, rows, earlier] = (b_q * down) @ up
        scores_k[:, :, rows, earlier] = (b_k * down) @ up
    return scores_q, scores_k


def across_chunks(
    parts: dict[str, torch.Tensor], chunks: Chunks, state: torch.Tensor, stored: Stored
) -> tuple[torch.Tensor, torch.Tensor]:
    """State before each chunk and v_new, ``[Nc, HV, ...]``; ``state`` becomes the last one."""
    h = state.new_zeros(len(chunks.token), *state.shape[1:])
    v_new = torch.zeros_like(parts["u"])
    last = torch.exp2(parts["gk"][:, :, -1])[..., None]
    longest = int(chunks.num_chunks.max()) if chunks.num_sequences else 0
    for step in range(longest):
        running = (chunks.num_chunks > step).nonzero()[:, 0]
        i_c = chunks.first_chunk[running] + step
        s = state[running]
        h[i_c] = stored(s)
        v_new[i_c] = stored(parts["u"][i_c] - parts["w"][i_c] @ h[i_c])
        state[running] = last[i_c] * s + parts["kg"][i_c].mT @ v_new[i_c]
    return h, v_new
