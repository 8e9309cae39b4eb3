"""Counted work against a mask that is written out."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fa_triton.cases.work import attention_flops, visible_pairs

WIDTHS = st.integers(-1, 12)
LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4)


@given(lengths=LENGTHS, left=WIDTHS, right=WIDTHS)
def test_pairs_are_those_of_the_mask(lengths: list[tuple[int, int]], left: int, right: int) -> None:
    expected = 0
    for q_len, kv_len in lengths:
        distance = torch.arange(kv_len)[None] - (torch.arange(q_len)[:, None] + kv_len - q_len)
        seen = torch.ones(q_len, kv_len, dtype=torch.bool)
        if left >= 0:
            seen &= distance >= -left
        if right >= 0:
            seen &= distance <= right
        expected += int(seen.sum())
    q_lens, kv_lens = zip(*lengths, strict=True)
    assert visible_pairs(q_lens, kv_lens, (left, right)) == expected


def test_huge_lengths_are_counted_at_once() -> None:
    length = 2**27
    assert visible_pairs([length], [length], (-1, 0)) == length * (length + 1) // 2


def test_operations_count_both_products() -> None:
    assert attention_flops(10, 4, 128, 128) == 4 * 10 * 4 * 128
    assert attention_flops(10, 4, 192, 128) == 2 * 10 * 4 * 320
