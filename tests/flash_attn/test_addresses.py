"""Strides: views, different ones for K and V, and offsets past 2^31 elements."""

from __future__ import annotations

import pytest
import torch

from fa_triton import flash_attn
from tests.flash_attn.paging import Paging
from tests.oracle import assert_accurate

FAR = 2**31 + 2**12


def sparse(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a view over untouched memory, which costs only the pages that are written."""
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return torch.empty(extent, dtype=dtype).as_strided(shape, strides)


@pytest.mark.parametrize("rows", [1, 24])
def test_batch_offsets_past_2_31_elements(rows: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, rows, 4, 64).half()
    k = sparse((2, 40, 2, 64), (FAR, 128, 64, 1), torch.float16)
    v = sparse((2, 40, 2, 64), (FAR, 128, 64, 1), torch.float16)
    k.copy_(torch.randn(k.shape))
    v.copy_(torch.randn(v.shape))
    options = {"softmax_scale": 0.125, "mask_mode": 3, "return_softmax_lse": True}
    out, lse = flash_attn(q, k, v, **options)
    dense = (k.contiguous(), v.contiguous())
    assert_accurate(out, lse, q, *dense, **options)


def test_head_offsets_past_2_31_elements() -> None:
    torch.manual_seed(0)
    q = sparse((1, 8, 2, 64), (64, 64, FAR, 1), torch.float16)
    q.copy_(torch.randn(q.shape))
    k = sparse((1, 30, 2, 64), (64, 64, FAR, 1), torch.float16)
    k.copy_(torch.randn(k.shape))
    v = torch.randn(1, 30, 2, 64).half()
    options = {"softmax_scale": 0.125, "return_softmax_lse": True}
    out, lse = flash_attn(q, k, v, **options)
    assert_accurate(out, lse, q.contiguous(), k.contiguous(), v, **options)


@pytest.mark.parametrize("layout", ["PA_BBND", "PA_BNBD", "PA_NZ"])
@pytest.mark.parametrize("tokens", [1, 20])
def test_pages_past_2_31_elements(layout: str, tokens: int) -> None:
    """Untouched memory costs nothing: of 8193 pages of 2^18 elements two are written."""
    page_size, heads, dim, far = 1024, 4, 64, 8192
    generator = torch.Generator().manual_seed(0)
    paging = Paging(layout, page_size)
    near = [torch.randn(2, page_size, heads, dim, generator=generator).half() for _ in "kv"]
    near = [paging.from_rows(pages) for pages in near]
    caches = [torch.empty(far + 1, *pages.shape[1:], dtype=torch.float16) for pages in near]
    assert caches[0].stride(0) * far == 2**31
    for cache, pages in zip(caches, near, strict=True):
        cache[[17, far]] = pages
    q = torch.randn(2, tokens, 8, dim, generator=generator).half()
    options = {
        "seqused_kv": torch.tensor((1100, 60), dtype=torch.int32),
        "layout_kv": layout,
        "softmax_scale": 0.125,
        "mask_mode": 3,
        "return_softmax_lse": True,
    }
    table = torch.tensor([[far, 17], [17, -1]], dtype=torch.int32)
    out, lse = flash_attn(q, *caches, **options, block_table=table)
    options["block_table"] = torch.tensor([[1, 0], [0, -1]], dtype=torch.int32)
    assert_accurate(out, lse, q, *near, **options)


def test_k_and_v_of_one_interleaved_allocation() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 9, 4, 64).half()
    cache = torch.randn(2, 50, 2, 2, 80).half()
    k, v = cache[:, :, 0, :, :64], cache[:, :, 1, :, 8:72]
    options = {"softmax_scale": 0.125, "mask_mode": 3, "return_softmax_lse": True}
    out, lse = flash_attn(q, k, v, **options)
    assert_accurate(out, lse, q, k, v, **options)


def test_expanded_heads_and_batch() -> None:
    torch.manual_seed(0)
    q = torch.randn(3, 9, 4, 64).half()
    k = torch.randn(1, 50, 1, 64).half().expand(3, 50, 4, 64)
    v = torch.randn(1, 50, 4, 64).half().expand(3, 50, 4, 64)
    options = {"softmax_scale": 0.125, "return_softmax_lse": True}
    out, lse = flash_attn(q, k, v, **options)
    assert_accurate(out, lse, q, k, v, **options)


def test_inputs_are_left_alone() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 20, 2, 64) for _ in range(3))
    kept = [tensor.clone() for tensor in (q, k, v)]
    flash_attn(q, k, v, mask_mode=3)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), kept, strict=True))
