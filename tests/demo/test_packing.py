"""Padding taken out of a batch and put back."""

from __future__ import annotations

import pytest
import torch

from fa_triton.integrations.packing import pack


def _mask(*rows: str) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])


def test_mask_without_padding_needs_no_packing() -> None:
    assert pack(_mask("111", "111"), 3) is None


def test_lengths_of_a_left_padded_prefill() -> None:
    batch = pack(_mask("0011", "1111"), 4)
    assert batch is not None
    assert batch.q_lens == (2, 4)
    assert batch.kv_lens == (2, 4)
    assert batch.cu_seqlens_q.tolist() == [0, 2, 6]
    assert batch.cu_seqlens_q.dtype == torch.int32
    assert not batch.has_holes


def test_lengths_of_a_decode_step() -> None:
    batch = pack(_mask("0011", "1111"), 1)
    assert batch is not None
    assert batch.q_lens == (1, 1)
    assert batch.q_rows is None
    assert batch.cu_seqlens_kv.tolist() == [0, 2, 6]


def test_sequence_without_a_real_token() -> None:
    batch = pack(_mask("0000", "0111"), 4)
    assert batch is not None
    assert batch.kv_lens == (0, 3)
    assert batch.cu_seqlens_kv.tolist() == [0, 0, 3]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("0011", "1110"), False),
        (("1001", "1111"), True),
        (("0101",), True),
        (("0110", "0110"), False),
    ],
)
def test_holes(rows: tuple[str, ...], expected: bool) -> None:
    batch = pack(_mask(*rows), 4)
    assert batch is not None
    assert batch.has_holes is expected


@pytest.mark.parametrize("capacity", [4, 7])
def test_gather_kv_keeps_tokens_in_order(capacity: int) -> None:
    mask = _mask("0011", "1011")
    states = torch.randn(2, 3, capacity, 8)
    batch = pack(mask, 1)
    assert batch is not None
    expected = states[:, :, :4].transpose(1, 2)[mask]
    torch.testing.assert_close(batch.gather_kv(states), expected, rtol=0, atol=0)


def test_gather_kv_of_a_strided_view() -> None:
    mask = _mask("01", "11")
    states = torch.randn(2, 2, 3, 8).transpose(1, 2)
    batch = pack(mask, 2)
    assert batch is not None
    expected = states[:, :, :2].transpose(1, 2)[mask]
    torch.testing.assert_close(batch.gather_kv(states), expected, rtol=0, atol=0)


def test_queries_come_back_to_their_place() -> None:
    mask = _mask("001", "111", "110")
    batch = pack(mask, 3)
    assert batch is not None
    query = torch.randn(3, 4, 3, 8)
    back = batch.scatter_out(batch.gather_q(query))
    expected = query.transpose(1, 2) * mask[:, :, None, None]
    assert back.is_contiguous()
    torch.testing.assert_close(back, expected, rtol=0, atol=0)
