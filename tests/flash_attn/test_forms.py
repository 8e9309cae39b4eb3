"""Every layout, mask, head grouping, head dim and dtype against the float64 oracle."""

from __future__ import annotations

import pytest
import torch

from tests.flash_attn.batches import MASKS, Batch

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
RAGGED = Batch(q_lens=(70, 1, 33), kv_lens=(150, 64, 33), seed=1)
# decode, short queries, a mix of both with prefill, prefill alone
LENGTHS = {
    "decode": ((1, 1, 1), (200, 17, 64)),
    "short": ((5, 2, 4), (90, 70, 4)),
    "mixed": ((1, 130, 3), (300, 140, 20)),
    "prefill": ((100, 140), (100, 190)),
}
pytestmark = pytest.mark.usefixtures("nan_filled_memory")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["BSND", "BNSD", "TND"])
def test_layouts_and_masks(layout: str, mask: str) -> None:
    RAGGED.but(layout=layout, mask=mask).check()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "band"])
@pytest.mark.parametrize("rows", LENGTHS)
def test_dtypes_and_row_kinds(rows: str, mask: str, dtype: torch.dtype) -> None:
    q_lens, kv_lens = LENGTHS[rows]
    Batch(q_lens, kv_lens, heads=(8, 2), dtype=dtype, mask=mask, layout="TND").check()


@pytest.mark.slow
@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize(
    "heads", [(3, 3), (1, 1), (6, 1), (9, 3), (5, 5), (16, 1), (40, 2)], ids=str
)
def test_head_groups(heads: tuple[int, int], rows: str) -> None:
    q_lens, kv_lens = LENGTHS[rows]
    Batch(q_lens, kv_lens, heads=heads, has_sinks=True, layout="BSND").check()


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ["decode", "mixed", "prefill"])
def test_head_dims(rows: str, dtype: torch.dtype, head_dim: int) -> None:
    q_lens, kv_lens = LENGTHS[rows]
    Batch(q_lens, kv_lens, head_dim=head_dim, dtype=dtype, layout="BNSD").check()


@pytest.mark.parametrize("rows", LENGTHS)
def test_bnsd_queries_bsnd_result(rows: str) -> None:
    q_lens, kv_lens = LENGTHS[rows]
    Batch(q_lens, kv_lens, layout="BNSD", layout_out="BSND", padding=3, has_sinks=True).check()


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "TND"])
def test_empty_sequences_and_padding(layout: str) -> None:
    Batch((0, 37, 0, 0, 5, 0), (5, 37, 0, 3, 130, 7), layout=layout, padding=6).check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_vendor_tolerance_on_wide_uniform_inputs(dtype: torch.dtype) -> None:
    from fa_triton import flash_attn
    from tests.oracle import assert_accurate

    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        (10 * torch.rand(1, 256, 4, 128, generator=generator) - 5).to(dtype) for _ in range(3)
    )
    options = {"softmax_scale": 128**-0.5, "mask_mode": 3, "return_softmax_lse": True}
    out, lse = flash_attn(q, k, v, **options)
    assert_accurate(out, lse, q, k, v, vendor=True, **options)
