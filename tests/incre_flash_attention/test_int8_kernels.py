"""Both kernels for a cache of eight bits, whichever a device's tile config chooses."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch

from fa_triton.attention import plans, prepared
from fa_triton.incremental import incre_flash_attention
from fa_triton.incremental_reference import incre_flash_attention_reference
from fa_triton.tile_config import TileConfig, TileKey
from tests.incre_flash_attention.batches import IncreBatch

TERM_ERROR = 1e-3
BATCH, HEADS, KV_HEADS, KEYS = 2, 8, 2, 300
PER_CHANNEL, PER_TOKEN_HEAD = "per_channel", "per_token_head"


@pytest.fixture(params=[True, False], ids=["terms", "cast"])
def int8_terms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Choose one of the kernels for every problem."""
    chosen: Callable[[TileKey], TileConfig] = plans.choose_tile

    def choose(key: TileKey) -> TileConfig:
        return msgspec.structs.replace(chosen(key), int8_terms=request.param)

    monkeypatch.setattr(plans, "choose_tile", choose)
    prepared.prepare.cache_clear()
    return request.param


def call(dim: int, mode: str, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], dict]:
    generator = torch.Generator().manual_seed(dim)
    q = torch.randn(BATCH, HEADS, 1, dim, generator=generator).to(dtype)
    k, v = (
        torch.randint(-128, 128, (BATCH, KV_HEADS, KEYS, dim), generator=generator).to(torch.int8)
        for _ in range(2)
    )
    shape = (2, KV_HEADS, 1, dim) if mode == PER_CHANNEL else (2, BATCH, KV_HEADS, KEYS)
    scale = (0.5 + torch.rand(shape, generator=generator)) / 64
    offset = 8 * torch.randn(shape, generator=generator)
    kind = dtype if mode == PER_CHANNEL else torch.float32
    options = {
        "num_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "scale_value": dim**-0.5,
        "input_layout": "BNSD",
        "antiquant_scale": scale.to(kind),
        "antiquant_offset": offset.to(kind),
        "antiquant_mode": mode,
    }
    return (q, k, v), options


@pytest.mark.parametrize("mode", [PER_CHANNEL, PER_TOKEN_HEAD])
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
def test_error_against_dequantised_keys(dim: int, mode: str, int8_terms: bool) -> None:
    """The terms err by less than fp16 rounds; the cast form by what it rounds: q, P and V."""
    tensors, options = call(dim, mode, torch.float16)
    out = incre_flash_attention(*tensors, **options)
    exact, _ = incre_flash_attention_reference(*tensors, **options, out_dtype=torch.float64)
    rounded, _ = incre_flash_attention_reference(*tensors, **options, emulate=True)
    error = (out.double() - exact).norm() / exact.norm()
    rounding = (rounded.double() - exact).norm() / exact.norm()
    assert error <= 1.1 * rounding
    if int8_terms:
        assert error <= TERM_ERROR


@pytest.mark.parametrize("mode", [PER_CHANNEL, PER_TOKEN_HEAD])
def test_terms_err_by_the_rounding_of_the_result_alone(mode: str, int8_terms: bool) -> None:
    tensors, options = call(128, mode, torch.bfloat16)
    exact, _ = incre_flash_attention_reference(*tensors, **options, out_dtype=torch.float64)
    error = incre_flash_attention(*tensors, **options).double() - exact
    least = exact.bfloat16().double() - exact
    if int8_terms:
        assert error.norm() <= 1.1 * least.norm()
    else:
        assert error.norm() > 1.1 * least.norm(), "the cast form rounds q, P or both to bf16"


@pytest.mark.parametrize("mode", ["per_token", "per_token_head"])
def test_offsets_per_token_with_other_strides_than_the_scales(
    mode: str, nan_filled_memory: None
) -> None:
    batch = IncreBatch((40, 33, 7), heads=(4, 2), head_dim=32, quant=mode, has_offset=True)
    call = batch.call()
    expected = incre_flash_attention(**call)
    offset = call["antiquant_offset"]
    wider = torch.full((*offset.shape[:-1], 100), torch.nan)
    wider[..., 30 : 30 + offset.shape[-1]] = offset
    out = incre_flash_attention(
        **call | {"antiquant_offset": wider[..., 30 : 30 + offset.shape[-1]]}
    )
    assert torch.equal(out, expected)
    one_for_all = torch.tensor(3.0).expand(offset.shape[-1]).contiguous().expand(offset.shape)
    out = incre_flash_attention(**call | {"antiquant_offset": one_for_all})
    expected = incre_flash_attention(**call | {"antiquant_offset": one_for_all.contiguous()})
    assert torch.equal(out, expected)
