"""Calls that repeat an earlier one with other tensors: kept launches exchange addresses alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata, incre_flash_attention
from fa_triton.attention import repeats
from fa_triton.native.kernel import BoundLaunch
from fa_triton.reference import flash_attn_reference

DTYPE = torch.bfloat16
OPTIONS: dict[str, Any] = {"softmax_scale": 0.125, "return_softmax_lse": True}


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Outcomes of the repeated launches, from no kept calls on."""
    torch.set_num_threads(1)
    repeats._kept.clear()
    outcomes: list[bool] = []
    launch = BoundLaunch.launch

    def counted(self: BoundLaunch, addresses: Any) -> bool:
        outcomes.append(launch(self, addresses))
        return outcomes[-1]

    monkeypatch.setattr(BoundLaunch, "launch", counted)
    return outcomes


def attend_and_compare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> None:
    out, lse = flash_attn(q, k, v, **OPTIONS, **options)
    exact, exact_lse = flash_attn_reference(q, k, v, **OPTIONS, **options)
    torch.testing.assert_close(out.float(), exact.float(), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse, exact_lse.float(), rtol=1e-3, atol=1e-3)


def tensors(seed: int, tokens: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, tokens, 8, 64), (2, 200, 2, 64), (2, 200, 2, 64))
    return tuple(torch.randn(shape, generator=generator).to(DTYPE) for shape in shapes)  # type: ignore[return-value]


def test_other_tensors(repeated: list[bool]) -> None:
    for seed in range(3):
        attend_and_compare(*tensors(seed))
    assert repeated == [True, True]


def test_lengths_and_pages_are_those_of_the_call(repeated: list[bool]) -> None:
    q, _, _ = tensors(0)
    plan = flash_attn_metadata(
        8, 2, 64, batch_size=2, max_seqlen_q=1, max_seqlen_kv=128, layout_kv="PA_BBND", page_size=32
    )
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        pages = torch.randn(2, 9, 32, 2, 64, generator=generator).to(DTYPE)
        table = torch.randperm(8, generator=generator).to(torch.int32).view(2, 4) + 1
        used = torch.tensor([128 - 40 * seed, 1 + seed], dtype=torch.int32)
        places = {"block_table": table, "seqused_kv": used, "layout_kv": "PA_BBND"}
        out, lse = flash_attn(q, *pages, metadata=plan, **places, **OPTIONS)
        exact, exact_lse = flash_attn_reference(q, *pages, **places, **OPTIONS)
        torch.testing.assert_close(out.float(), exact.float(), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(lse, exact_lse.float(), rtol=1e-3, atol=1e-3)
    assert repeated == [True, True]


def test_rows_without_keys_are_cleared_each_time(repeated: list[bool]) -> None:
    q, k, v = tensors(0)
    for lengths in ([200, 7], [0, 9], [3, 0]):
        used = torch.tensor(lengths, dtype=torch.int32)
        attend_and_compare(q, k, v, seqused_kv=used, max_seqlen_kv=200)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_another_alignment_is_no_repeat(which: int, repeated: list[bool]) -> None:
    given = list(tensors(0))
    attend_and_compare(*given)
    moved = torch.empty(given[which].numel() + 1, dtype=DTYPE)[1:].view(given[which].shape)
    given[which] = moved.copy_(given[which])
    attend_and_compare(*given)
    assert repeated == [False]


def test_other_strides_are_no_repeat(repeated: list[bool]) -> None:
    q, k, v = tensors(0)
    attend_and_compare(q, k, v)
    attend_and_compare(q, k.transpose(1, 2).contiguous().transpose(1, 2), v)
    wide = torch.randn(2, 1, 8, 128).to(DTYPE)
    attend_and_compare(wide[..., :64], k, v)
    assert repeated == []


def test_caches_of_eight_bits(repeated: list[bool]) -> None:
    generator = torch.Generator().manual_seed(0)
    options = {"num_heads": 8, "num_key_value_heads": 2, "input_layout": "BSND"}
    for seed in range(3):
        q = tensors(seed)[0]
        k, v = (
            torch.randint(-128, 128, (2, 200, 2, 64), generator=generator).to(torch.int8)
            for _ in range(2)
        )
        scale = (torch.rand(2, 2, 1, 64, generator=generator) / 64).to(DTYPE)
        out = incre_flash_attention(
            q, k, v, antiquant_scale=scale, antiquant_offset=10 * scale, **options
        )
        keys, values = (
            (cache.float() + 10 * s.float().view(2, 64)) * s.float().view(2, 64)
            for cache, s in zip((k, v), scale, strict=True)
        )
        exact, _ = flash_attn_reference(q.float(), keys, values)
        torch.testing.assert_close(out.float(), exact.float(), rtol=2e-2, atol=2e-2)
    assert repeated == [True, True]
