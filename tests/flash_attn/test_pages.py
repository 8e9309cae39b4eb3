"""Keys and values in the pages of a cache: layouts, row kinds, page sizes, strides, rubbish."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.planner.table import read_header
from tests.flash_attn.batches import MASKS, Batch, starts
from tests.flash_attn.paging import RUBBISH, Paging
from tests.oracle import assert_accurate

LAYOUTS = ["PA_BBND", "PA_BNBD", "PA_NZ"]
PAGE_SIZES = [16, 32, 48, 64, 128, 528, 1024]
PLANNERS = ["balanced", "section_stream_k"]
# decode with a group of heads, some query tokens of a draft, a mix of all, prefill
ROWS = {
    "decode": ((1, 1, 0, 1), (300, 33, 7, 0)),
    "draft": ((3, 2, 4, 1), (190, 48, 4, 96)),
    "mixed": ((1, 70, 3, 0), (290, 140, 2, 50)),
    "prefill": ((100, 140), (100, 190)),
}
DECODE = Batch(*ROWS["decode"], layout="TND", paging=Paging(page_size=48))
MIXED = DECODE.but(q_lens=ROWS["mixed"][0], kv_lens=ROWS["mixed"][1])
pytestmark = pytest.mark.usefixtures("nan_filled_memory")


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_kinds(layout: str, rows: str) -> None:
    q_lens, kv_lens = ROWS[rows]
    DECODE.but(q_lens=q_lens, kv_lens=kv_lens, paging=Paging(layout, 48)).check()


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout_q", ["BSND", "BNSD"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_query_layouts(layout: str, layout_q: str, rows: str) -> None:
    q_lens, kv_lens = ROWS[rows]
    batch = DECODE.but(q_lens=q_lens, kv_lens=kv_lens, paging=Paging(layout, 48), layout=layout_q)
    batch.check()
    if layout_q == "BNSD":
        batch.but(layout_out="BSND").check()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_page_sizes_of_decode(page_size: int) -> None:
    kv_lens = (1, page_size, 2 * page_size + 5, 1500)
    for layout in LAYOUTS[:2]:
        DECODE.but(q_lens=(1,) * 4, kv_lens=kv_lens, paging=Paging(layout, page_size)).check()


@pytest.mark.slow
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_page_sizes_of_mixed_rows(layout: str, page_size: int) -> None:
    kv_lens = (page_size + 1, 70, 2 * page_size, 3)
    DECODE.but(q_lens=(1, 70, 3, 5), kv_lens=kv_lens, paging=Paging(layout, page_size)).check()


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(8, 2), (5, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("tokens", [2, 3, 7, 16])
def test_rows_of_draft_tokens(tokens: int, heads: tuple[int, int]) -> None:
    for layout in LAYOUTS:
        batch = DECODE.but(q_lens=(tokens, 1, tokens), kv_lens=(150, 49, tokens), heads=heads)
        batch.but(paging=Paging(layout, 48)).check()


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks(layout: str, mask: str) -> None:
    for batch in (DECODE, MIXED):
        batch.but(paging=Paging(layout, 48), mask=mask).check()


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [16, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dtypes_and_head_dims(layout: str, dtype: torch.dtype, head_dim: int) -> None:
    for batch in (DECODE, MIXED):
        batch.but(paging=Paging(layout, 64), dtype=dtype, head_dim=head_dim).check()


@pytest.mark.parametrize(
    "plan",
    [
        {"planner": "balanced", "page_size": None},
        {"planner": "balanced", "page_size": 48},
        {"planner": "section_stream_k", "block_q": 16, "block_kv": 32},
        {"planner": "section_stream_k", "block_q": 16, "block_kv": 48},
    ],
    ids=str,
)
def test_plans_cut_keys(plan: dict[str, Any]) -> None:
    """Where a plan cuts keys inside of a page, the kernels take fewer keys at once."""
    plan = plan | {"num_aic": 7, "num_aiv": 14}
    long = DECODE.but(kv_lens=(900, 33, 470, 0))
    assert read_header(long.metadata(**plan).numpy()).is_fd
    long.check(**plan)
    MIXED.check(**plan)
    MIXED.but(mask="sliding").check(**plan)


@pytest.mark.slow
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("num_aic", [1, 24])
@pytest.mark.parametrize("blocks", [(16, 16), (16, 80), (64, 96)], ids=str)
def test_plan_blocks(blocks: tuple[int, int], num_aic: int, planner: str) -> None:
    plan = {"planner": planner, "num_aic": num_aic, "block_q": blocks[0], "block_kv": blocks[1]}
    for layout in LAYOUTS:
        MIXED.but(paging=Paging(layout, 48), mask="band").check(**plan)


def test_plans_of_upper_bounds() -> None:
    bounds = {"planned_q": (1, 90, 5, 4), "planned_kv": (600, 200, 300, 50)}
    MIXED.but(**bounds).check(num_aic=7)
    DECODE.but(planned_q=(1,) * 4, planned_kv=(700, 48, 96, 500)).check(num_aic=7)


@pytest.mark.parametrize("batch", [DECODE, MIXED], ids=["decode", "mixed"])
def test_what_no_sequence_uses_is_never_read(batch: Batch) -> None:
    """Rubbish in the table, NaN on pages: the same bits as with zeros everywhere."""
    (q, k, v), options = batch.tensors()
    table = options["block_table"]
    clean = table.clone()
    clean[(table == RUBBISH[0]) | (table == RUBBISH[1])] = 0
    assert not torch.equal(clean, table)
    assert k.isnan().any()
    wanted = flash_attn(q, k.nan_to_num(0), v.nan_to_num(0), **options | {"block_table": clean})
    # more columns than needed, rows apart, other rubbish
    wide = torch.full((len(table), 40), -(2**31), dtype=torch.int32)
    wide[:, : table.shape[1]] = table
    for used in (table, wide, wide[:, :-7]):
        out, lse = flash_attn(q, k, v, **options | {"block_table": used})
        assert torch.equal(out, wanted[0])
        assert torch.equal(lse, wanted[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequences_share_pages(layout: str) -> None:
    """A common prefix lies on the pages of the first sequence."""
    paging = Paging(layout, 48)
    batch = DECODE.but(q_lens=(1, 1, 1), kv_lens=(200, 160, 97), paging=paging)
    (q, k, v), options = batch.tensors()
    options["block_table"][1:, :2] = options["block_table"][:1, :2]
    out, lse = flash_attn(q, k, v, **options)
    assert_accurate(out, lse, q, k, v, **options)


def views(name: str, page_size: int, heads: int, dim: int) -> list[torch.Tensor]:
    """K and V ``(P, page, N, D)`` of one allocation, as caches of several engines hold them."""
    generator = torch.Generator().manual_seed(5)
    shapes = {
        "outer": (2, 9, page_size, heads, dim),
        "page": (9, 2, page_size, heads, dim),
        "token": (9, page_size, 2, heads, dim),
        "column": (9, page_size, heads, 2 * dim + 8),
        "head": (heads, 9, page_size, 2 * dim),
    }
    whole = torch.randn(shapes[name], generator=generator).half()
    if name == "column":
        k, v = whole[..., :dim], whole[..., dim + 8 :]
    elif name == "head":
        k, v = (part.permute(1, 2, 0, 3) for part in whole.split(dim, -1))
    else:
        k, v = whole.unbind(("outer", "page", "token").index(name))
    return [k, v]


@pytest.mark.parametrize("form", ["outer", "page", "token", "column", "head"])
def test_k_and_v_of_one_allocation(form: str) -> None:
    options = {
        "cu_seqlens_q": starts((1, 4, 1)),
        "seqused_kv": torch.tensor((144, 90, 3), dtype=torch.int32),
        "block_table": torch.tensor([[5, 0, 8], [2, 7, -1], [4, -1, -1]], dtype=torch.int32),
        "layout_q": "TND",
        "layout_out": "TND",
        "softmax_scale": 0.125,
        "mask_mode": 3,
        "return_softmax_lse": True,
    }
    q = torch.randn(6, 4, 64, generator=torch.Generator().manual_seed(6)).half()
    k, v = views(form, 48, 2, 64)
    assert not k.is_contiguous() or form == "outer"
    for layout in LAYOUTS[:2]:
        if layout == "PA_BNBD":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        out, lse = flash_attn(q, k, v, **options, layout_kv=layout)
        assert_accurate(out, lse, q, k, v, **options, layout_kv=layout)


def test_different_strides_of_k_and_v() -> None:
    (q, k, v), options = MIXED.tensors()
    wide = torch.full((len(k), 2, 60, 80), torch.nan).half()
    wide[:, :, 7:55, 16:] = k.transpose(1, 2)
    flipped = v.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    views = wide[:, :, 7:55, 16:].transpose(1, 2), flipped
    assert views[0].stride() != k.stride()
    assert views[1].stride() != v.stride()
    out, lse = flash_attn(q, *views, **options)
    wanted, wanted_lse = flash_attn(q, k, v, **options)
    assert torch.equal(out, wanted)
    assert torch.equal(lse, wanted_lse)


def test_strided_fractals() -> None:
    (q, k, v), options = MIXED.but(paging=Paging("PA_NZ", 48)).tensors()
    both = torch.stack([k, v], 2)
    wanted, wanted_lse = flash_attn(q, k, v, **options)
    out, lse = flash_attn(q, both[:, :, 0], both[:, :, 1], **options)
    assert torch.equal(out, wanted)
    assert torch.equal(lse, wanted_lse)


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("layout", ["PA_BNBD", pytest.param("PA_NZ", marks=pytest.mark.slow)])
def test_lengths_and_pages_change_in_place(layout: str, planner: str) -> None:
    """One plan serves every step below its bounds, as under graph replay."""
    paging = Paging(layout, 48)
    generator = torch.Generator().manual_seed(3)
    pages, width, heads = 40, 11, (8, 2)
    k, v = (
        paging.from_rows(torch.randn(pages, 48, heads[1], 64, generator=generator).half())
        for _ in "kv"
    )
    for longest in (1, 5):
        metadata = flash_attn_metadata(
            *heads,
            64,
            batch_size=3,
            max_seqlen_q=longest,
            max_seqlen_kv=500,
            page_size=48,
            layout_kv=layout,
            mask_mode=3,
            planner=planner,
            num_aic=24,
            block_q=16,
            block_kv=16,
        )
        assert read_header(metadata.numpy()).is_fd
        q = torch.randn(3, longest, heads[0], 64, generator=generator).half()
        used_q, used_kv = (torch.zeros(3, dtype=torch.int32) for _ in range(2))
        table = torch.full((3, width), -1, dtype=torch.int32)
        options = {
            "seqused_q": used_q,
            "seqused_kv": used_kv,
            "block_table": table,
            "layout_kv": layout,
            "mask_mode": 3,
            "softmax_scale": 0.125,
            "return_softmax_lse": True,
        }
        for kv_lens in ((500, 500, 500), (1, 499, 0), (49, 48, 470), (0, 0, 0), (300, 7, 96)):
            used_q.copy_(torch.randint(0, longest + 1, (3,), generator=generator))
            used_kv.copy_(torch.tensor(kv_lens))
            table.fill_(RUBBISH[0])
            for row, length in zip(table, kv_lens, strict=True):
                count = paging.pages_of(length)
                row[:count] = torch.randperm(pages, generator=generator)[:count]
            out, lse = flash_attn(q, k, v, metadata=metadata, **options)
            assert_accurate(out, lse, q, k, v, **options)
