"""Soft cap: logits bounded by ``cap * tanh(logit / cap)``, alone and with everything it meets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn
from fa_triton.planner.table import read_header
from tests.flash_attn.batches import Batch
from tests.flash_attn.paging import Paging
from tests.oracle import assert_accurate

DTYPES = [torch.float16, torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
DECODE = Batch((1, 1, 0, 1), (700, 33, 7, 0), layout="TND", options={"softcap": 5.0})
MIXED = DECODE.but(q_lens=(1, 70, 3, 0), kv_lens=(290, 140, 2, 50))
SPLIT = {"num_aic": 9, "num_aiv": 18}
CANN = {"planner": "section_stream_k", "block_q": 16, "block_kv": 32}
pytestmark = pytest.mark.usefixtures("nan_filled_memory")


def capped(cap: float, **options: Any) -> dict[str, Any]:
    return {"softcap": cap, **options}


@pytest.mark.parametrize("cap", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_caps(dtype: torch.dtype, cap: float) -> None:
    for scale in (0.125, 1.0):
        MIXED.but(dtype=dtype, options=capped(cap, softmax_scale=scale)).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "cap",
    [1e4, pytest.param(1e3, marks=pytest.mark.slow), pytest.param(1e30, marks=pytest.mark.slow)],
)
def test_large_caps(cap: float, dtype: torch.dtype) -> None:
    """A cap far above all logits changes nothing; ``1 - 2 / (e^x + 1)`` would lose their digits."""
    MIXED.but(dtype=dtype, options=capped(cap)).check()
    DECODE.but(dtype=dtype, options=capped(cap)).check(**SPLIT)


def test_small_logits_in_float32() -> None:
    """Logits of 1e-6 to 1 under caps of 1 to 1000: relative accuracy next to 0."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 40, 2, 64, generator=generator) for _ in range(3))
    q *= torch.logspace(-6, 0, 40)[None, :, None, None]
    for cap in (1.0, 30.0, 1000.0):
        options = {"softmax_scale": 0.125, "softcap": cap, "return_softmax_lse": True}
        out, lse = flash_attn(q, k, v, **options)
        assert_accurate(out, lse, q, k, v, **options)


@pytest.mark.parametrize("sign", [1, -1])
def test_logits_beyond_the_range_of_exp(sign: int) -> None:
    """q k of 1e4 and more: the cap holds, nothing overflows."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 20, 2, 64, generator=generator) for _ in range(3))
    options = {"softmax_scale": sign * 1e4, "softcap": 50.0, "return_softmax_lse": True}
    out, lse = flash_attn(q, k, v, **options)
    assert out.isfinite().all()
    assert lse.abs().max() < 50 + 3
    assert_accurate(out, lse, q, k, v, **options)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SPLIT, id="balanced"),
        pytest.param(SPLIT | CANN, id="section_stream_k", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("paging", [None, Paging("PA_BNBD", 48), Paging("PA_NZ", 48)], ids=str)
def test_split_keys_and_pages(paging: Paging | None, plan: dict[str, Any]) -> None:
    batch = DECODE.but(paging=paging, has_sinks=True)
    assert read_header(batch.metadata(**plan).numpy()).is_fd
    batch.check(**plan)


@pytest.mark.slow
@pytest.mark.parametrize("has_slopes", [False, True])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "sliding", "band", "left", "right"])
def test_with_masks_slopes_and_sinks(mask: str, has_sinks: bool, has_slopes: bool) -> None:
    for paging in (None, Paging("PA_BBND", 48)):
        batch = MIXED.but(mask=mask, paging=paging, has_sinks=has_sinks, has_slopes=has_slopes)
        batch.check(**SPLIT)
