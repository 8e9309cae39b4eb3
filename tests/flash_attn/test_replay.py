"""A plan from upper bounds serves every batch below them: lengths change in place, as in a graph.

A captured graph replays the very launches of one call. The launches depend on the plan and on the
shapes only, so calling again with the same table after writing to the length tensors is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata
from tests.flash_attn.batches import MASKS, starts
from tests.flash_attn.paging import RUBBISH, Paging
from tests.oracle import assert_accurate

pytestmark = pytest.mark.usefixtures("nan_filled_memory")


@dataclass(frozen=True)
class Bounds:
    """What the host knows before a step."""

    batch_size: int
    longest_q: int
    longest_kv: int
    heads: tuple[int, int] = (8, 2)
    head_dim: int = 64

    def metadata(self, layout: str, mask: str, **plan: Any) -> torch.Tensor:
        """Plan from host integers alone: no length tensor is named."""
        return flash_attn_metadata(
            *self.heads,
            self.head_dim,
            batch_size=self.batch_size,
            max_seqlen_q=self.longest_q,
            max_seqlen_kv=self.longest_kv,
            layout_q=layout,
            layout_kv=layout,
            layout_out=layout,
            **MASKS[mask],
            **plan,
        )


DECODE = Bounds(batch_size=4, longest_q=1, longest_kv=500)
DECODE_STEPS = [
    ((1, 1, 1, 1), (500, 500, 500, 500)),
    ((1, 1, 1, 1), (1, 499, 0, 128)),
    ((1, 0, 1, 0), (129, 0, 127, 33)),
    ((0, 0, 0, 0), (0, 0, 0, 0)),
    ((1, 1, 1, 1), (500, 2, 256, 257)),
]
MIXED = Bounds(batch_size=3, longest_q=40, longest_kv=300)
MIXED_STEPS = [
    ((40, 40, 40), (300, 300, 300)),
    ((40, 1, 0), (280, 300, 17)),
    ((3, 33, 1), (3, 64, 255)),
    ((1, 2, 40), (1, 1, 41)),
]
CASES = [
    pytest.param(bounds, steps, mask, id=f"{name}-{mask}", marks=marks)
    for name, bounds, steps in (("decode", DECODE, DECODE_STEPS), ("mixed", MIXED, MIXED_STEPS))
    for mask, marks in (("none", pytest.mark.slow), ("causal", ()), ("sliding", pytest.mark.slow))
]


@pytest.mark.parametrize(("bounds", "steps", "mask"), CASES)
def test_packed_lengths_change_in_place(
    bounds: Bounds, steps: list[tuple[tuple[int, ...], tuple[int, ...]]], mask: str
) -> None:
    metadata = bounds.metadata("TND", mask, num_aic=13, num_aiv=26)
    size, dim = bounds.batch_size, bounds.head_dim
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(size * bounds.longest_q, bounds.heads[0], dim, generator=generator).half()
    k, v = (
        torch.randn(size * bounds.longest_kv, bounds.heads[1], dim, generator=generator).half()
        for _ in range(2)
    )
    cu_q, cu_kv = (torch.zeros(size + 1, dtype=torch.int32) for _ in range(2))
    options = {
        "cu_seqlens_q": cu_q,
        "cu_seqlens_kv": cu_kv,
        "softmax_scale": dim**-0.5,
        "return_softmax_lse": True,
        "layout_q": "TND",
        "layout_kv": "TND",
        "layout_out": "TND",
        **MASKS[mask],
    }
    for q_lens, kv_lens in steps:
        cu_q.copy_(starts(q_lens))
        cu_kv.copy_(starts(kv_lens))
        out, lse = flash_attn(q, k, v, metadata=metadata, **options)
        assert_accurate(out, lse, q, k, v, **options)


@pytest.mark.parametrize("layout", ["BSND", pytest.param("BNSD", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("bounds", "steps", "mask"), CASES)
def test_dense_lengths_change_in_place(
    bounds: Bounds, steps: list[tuple[tuple[int, ...], tuple[int, ...]]], mask: str, layout: str
) -> None:
    metadata = bounds.metadata(layout, mask, num_aic=13, num_aiv=26)
    generator = torch.Generator().manual_seed(2)

    def make(length: int, heads: int) -> torch.Tensor:
        shape = (length, heads) if layout == "BSND" else (heads, length)
        return torch.randn(bounds.batch_size, *shape, bounds.head_dim, generator=generator).half()

    q = make(bounds.longest_q, bounds.heads[0])
    k, v = (make(bounds.longest_kv, bounds.heads[1]) for _ in range(2))
    used_q, used_kv = (torch.zeros(bounds.batch_size, dtype=torch.int32) for _ in range(2))
    options = {
        "seqused_q": used_q,
        "seqused_kv": used_kv,
        "softmax_scale": bounds.head_dim**-0.5,
        "return_softmax_lse": True,
        "layout_q": layout,
        "layout_kv": layout,
        "layout_out": layout,
        **MASKS[mask],
    }
    for q_lens, kv_lens in steps:
        used_q.copy_(torch.tensor(q_lens, dtype=torch.int32))
        used_kv.copy_(torch.tensor(kv_lens, dtype=torch.int32))
        out, lse = flash_attn(q, k, v, metadata=metadata, **options)
        assert_accurate(out, lse, q, k, v, **options)


@pytest.mark.parametrize(
    "layout",
    ["PA_BBND", *(pytest.param(name, marks=pytest.mark.slow) for name in ("PA_BNBD", "PA_NZ"))],
)
@pytest.mark.parametrize(("bounds", "steps", "mask"), CASES)
def test_pages_change_in_place(
    bounds: Bounds, steps: list[tuple[tuple[int, ...], tuple[int, ...]]], mask: str, layout: str
) -> None:
    """As an engine decodes: starts, lengths and the block table are buffers of the graph."""
    size, dim, (heads_q, heads_kv) = bounds.batch_size, bounds.head_dim, bounds.heads
    paging = Paging(layout, 48)
    metadata = flash_attn_metadata(
        heads_q,
        heads_kv,
        dim,
        batch_size=size,
        max_seqlen_q=bounds.longest_q,
        max_seqlen_kv=bounds.longest_kv,
        page_size=paging.page_size,
        layout_q="TND",
        layout_kv=layout,
        layout_out="TND",
        num_aic=13,
        num_aiv=26,
        **MASKS[mask],
    )
    generator = torch.Generator().manual_seed(3)
    pages_per_sequence = paging.pages_of(bounds.longest_kv)
    num_pages = size * pages_per_sequence
    q = torch.randn(size * bounds.longest_q, heads_q, dim, generator=generator).half()
    k, v = (
        paging.from_rows(
            torch.randn(num_pages, paging.page_size, heads_kv, dim, generator=generator).half()
        )
        for _ in range(2)
    )
    cu_q = torch.zeros(size + 1, dtype=torch.int32)
    used_kv = torch.zeros(size, dtype=torch.int32)
    block_table = torch.zeros(size, pages_per_sequence, dtype=torch.int32)
    options = {
        "cu_seqlens_q": cu_q,
        "seqused_kv": used_kv,
        "block_table": block_table,
        "softmax_scale": dim**-0.5,
        "return_softmax_lse": True,
        "layout_q": "TND",
        "layout_kv": layout,
        "layout_out": "TND",
        **MASKS[mask],
    }
    for q_lens, kv_lens in steps:
        cu_q.copy_(starts(q_lens))
        used_kv.copy_(torch.tensor(kv_lens, dtype=torch.int32))
        block_table.fill_(RUBBISH[0])
        shuffled = torch.randperm(num_pages, generator=generator).int()
        for row, ids, length in zip(
            block_table, shuffled.split(pages_per_sequence), kv_lens, strict=True
        ):
            used = paging.pages_of(length)
            row[:used] = ids[:used]
        out, lse = flash_attn(q, k, v, metadata=metadata, **options)
        assert_accurate(out, lse, q, k, v, **options)
