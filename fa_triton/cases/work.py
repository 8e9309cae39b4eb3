"""How much a call computes: query-key pairs that the mask shows, floating-point operations."""

from __future__ import annotations

from collections.abc import Sequence

# Cases of more floating-point operations are planned and not computed.
MAX_GFLOP = 20.0


def visible_pairs(q_lens: Sequence[int], kv_lens: Sequence[int], window: tuple[int, int]) -> int:
    """Query-key pairs of one head that are not masked, summed over the sequences.

    Args:
        q_lens: Actual query lengths.
        kv_lens: Actual key lengths.
        window: Visible keys left and right of the diagonal, -1 unlimited, aligned bottom-right.
    """
    left, right = window
    pairs = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        diagonal = kv_len - q_len
        end = q_len * kv_len
        if right >= 0:
            end = _sum_clipped(diagonal + right + 1, q_len, kv_len)
        start = 0 if left < 0 else _sum_clipped(diagonal - left, q_len, kv_len)
        pairs += end - start
    return pairs


def attention_flops(pairs: int, num_heads_q: int, head_dim: int, head_dim_v: int) -> int:
    """Multiplications and additions of both matrix products."""
    return 2 * pairs * num_heads_q * (head_dim + head_dim_v)


def _sum_clipped(first: int, count: int, high: int) -> int:
    """Sum of ``min(max(x, 0), high)`` over ``count`` integers from ``first`` on."""

    def below(end: int) -> int:
        # over 0 <= x < end
        if end <= 0:
            return 0
        if end <= high + 1:
            return end * (end - 1) // 2
        return high * (high + 1) // 2 + (end - high - 1) * high

    return below(first + count) - below(first)
