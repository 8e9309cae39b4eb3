"""Distance bias (ALiBi): ``-slope * |key - position|``, aligned bottom-right like the masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn
from fa_triton.planner.table import read_header
from tests.flash_attn.batches import MASKS, Batch, starts
from tests.flash_attn.paging import Paging
from tests.oracle import assert_accurate

DECODE = Batch((1, 1, 0, 1), (700, 33, 7, 0), layout="TND", has_slopes=True)
# a batch that merges the heads of a group, and one that does not
MIXED = DECODE.but(q_lens=(1, 70, 3, 0), kv_lens=(290, 140, 2, 50))
PREFILL = DECODE.but(q_lens=(100, 140), kv_lens=(100, 190))
DRAFT = DECODE.but(q_lens=(3, 2, 4, 1), kv_lens=(190, 48, 4, 96))
SPLIT = {"num_aic": 9, "num_aiv": 18}
CANN = {"planner": "section_stream_k", "block_q": 16, "block_kv": 32}
PLANS = [
    pytest.param(SPLIT, id="balanced"),
    pytest.param(SPLIT | CANN, id="section_stream_k", marks=pytest.mark.slow),
]
pytestmark = pytest.mark.usefixtures("nan_filled_memory")


def test_bias_by_hand() -> None:
    """With q = 0 the logits are the bias alone: row i of 3 stands at key i + 2 of 5."""
    q = torch.zeros(1, 3, 2, 16)
    k = torch.zeros(1, 5, 2, 16)
    v = torch.eye(5, 16)[None, :, None].repeat(1, 1, 2, 1)
    slopes = torch.tensor([0.5, -1.0])
    out, lse = flash_attn(q, k, v, alibi_slopes=slopes, return_softmax_lse=True)
    distance = (torch.arange(5)[None, :] - torch.arange(3)[:, None] - 2).abs()
    for head, slope in enumerate(slopes):
        logits = -slope * distance
        torch.testing.assert_close(out[0, :, head, :5], logits.softmax(-1))
        torch.testing.assert_close(lse[0, head], logits.logsumexp(-1))


@pytest.mark.parametrize(
    "mask",
    [
        "causal",
        pytest.param("none", marks=pytest.mark.slow),
        pytest.param("band", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("batch", [DECODE, DRAFT, PREFILL], ids=["decode", "draft", "prefill"])
def test_row_kinds(batch: Batch, mask: str) -> None:
    batch.but(mask=mask).check()


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [(6, 2), (5, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("layout", ["BSND", "BNSD"])
def test_masks_and_heads(layout: str, heads: tuple[int, int], mask: str) -> None:
    for batch in (DECODE, MIXED):
        batch.but(layout=layout, heads=heads, mask=mask).check(**SPLIT)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("paging", [None, Paging("PA_BNBD", 48), Paging("PA_NZ", 48)], ids=str)
def test_split_keys_and_pages(paging: Paging | None, plan: dict[str, Any]) -> None:
    batch = DECODE.but(paging=paging, has_sinks=True)
    assert read_header(batch.metadata(**plan).numpy()).is_fd
    batch.check(**plan)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("paging", [None, Paging("PA_BBND", 48)], ids=str)
def test_split_rows_of_groups(paging: Paging | None, plan: dict[str, Any]) -> None:
    for batch in (MIXED, DRAFT):
        batch.but(paging=paging, mask="left").check(**plan)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["BSND", "BNSD"])
def test_head_major_rows(layout: str) -> None:
    MIXED.but(layout=layout, heads=(6, 2)).check(**SPLIT | CANN)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str
)
def test_slopes_of_the_paper(dtype: torch.dtype) -> None:
    """Slopes of 2^-1 to 2^-8 over 4000 keys: the bias reaches -2000."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(5, 8, 64, generator=generator).to(dtype)
    k, v = (torch.randn(4000, 8, 64, generator=generator).to(dtype) for _ in "kv")
    options = {
        "cu_seqlens_q": starts((5,)),
        "cu_seqlens_kv": starts((4000,)),
        "layout_q": "TND",
        "layout_kv": "TND",
        "layout_out": "TND",
        "softmax_scale": 0.125,
        "mask_mode": 3,
        "alibi_slopes": 0.5 ** torch.arange(1, 9).float(),
        "return_softmax_lse": True,
    }
    out, lse = flash_attn(q, k, v, **options)
    assert_accurate(out, lse, q, k, v, **options)


def test_zero_slopes_are_no_bias() -> None:
    (q, k, v), options = MIXED.tensors()
    options["alibi_slopes"] = torch.zeros(4)
    out, lse = flash_attn(q, k, v, **options)
    options["alibi_slopes"] = None
    assert_accurate(out, lse, q, k, v, **options)
