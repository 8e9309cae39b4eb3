"""One tensor of keys per sequence: other lengths, other places, tensors without a key."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton.incremental import incre_flash_attention
from tests.incre_flash_attention.accuracy import assert_accurate
from tests.incre_flash_attention.batches import LIST, IncreBatch
from tests.incre_flash_attention.conftest import Attend

pytestmark = pytest.mark.usefixtures("nan_filled_memory")


def assert_exact(attend: Attend, call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = attend(**call)
    assert_accurate(out, lse, call)
    return out, lse


@pytest.mark.parametrize("layout", ["BSH", "BNSD"])
@pytest.mark.parametrize("lengths", [(0, 30, 1), (1, 1, 1), (1, 0, 150)], ids=str)
def test_tensors_of_few_keys(attend: Attend, layout: str, lengths: tuple[int, ...]) -> None:
    """The stride of an axis of one token may be any number, and an empty tensor has no memory."""
    batch = IncreBatch(lengths, heads=(4, 2), layout=layout, cache=LIST)
    call = batch.call() | {"return_softmax_lse": True, "actual_seq_lengths": None}
    axis = 2 if layout == "BNSD" else 1
    for name in ("key", "value"):
        call[name] = [
            tensor.narrow(axis, 0, length)
            for tensor, length in zip(call[name], lengths, strict=True)
        ]
    out, lse = assert_exact(attend, call)
    for b, length in enumerate(lengths):
        assert bool((lse[b] == torch.inf).all()) is (length == 0)
        assert bool((out[b] == 0).all()) is (length == 0)


def test_tensors_lie_anywhere(attend: Attend) -> None:
    """Views of one memory in any order, heads of any stride."""
    generator = torch.Generator().manual_seed(0)
    memory = torch.randn(3, 2, 40, 16, generator=generator).half()
    wide = torch.full((1, 2, 90, 16), torch.nan).half()
    wide[:, :, 50:80] = memory[:1, :, :30]
    key = [memory[2:], wide[:, :, 50:80], memory[:1, :, 10:35]]
    call = {
        "query": torch.randn(3, 4, 1, 16, generator=generator).half(),
        "key": key,
        "value": [2 * tensor for tensor in key],
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "BNSD",
        "actual_seq_lengths": [40, 29, 25],
        "return_softmax_lse": True,
    }
    assert_exact(attend, call)


@pytest.mark.slow
def test_256_tensors() -> None:
    lengths = tuple((37 * b) % 70 for b in range(256))
    call = IncreBatch(lengths, heads=(2, 1), cache=LIST, layout="BSND").call()
    assert_exact(incre_flash_attention, call | {"return_softmax_lse": True})
