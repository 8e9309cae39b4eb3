"""Fractals that are copied to rows before the attention, as on A2 and A3; here on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.attention.fractals import UnfoldedKeys, problem_of_rows, unfold
from fa_triton.attention.kernels import KeyTensors
from fa_triton.validation import validate_flash_attn
from tests.flash_attn.batches import MASKS, Batch
from tests.flash_attn.paging import RUBBISH, Paging
from tests.oracle import assert_accurate

PAGE_SIZES = [16, 32, 96, 128, 1024]
DECODE = Batch((1, 3, 0, 1, 2), (300, 33, 7, 0, 129), layout="TND", paging=Paging("PA_NZ", 48))
MIXED = DECODE.but(q_lens=(1, 70, 3, 0, 5), kv_lens=(290, 140, 2, 50, 16))
pytestmark = pytest.mark.usefixtures("nan_filled_memory")


def in_a_large_cache(batch: Batch) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Tensors of a batch whose cache has more pages than its block table has entries."""
    (q, k, v), options = batch.tensors()
    spare = options["block_table"].numel()
    grown = [torch.cat([t, torch.full_like(t[:1], torch.nan).expand(spare, *t.shape[1:])])
             for t in (k, v)]  # fmt: skip
    return [q, *grown], options


@pytest.mark.parametrize("has_own_table", [False, True], ids=["ids", "own table"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_page_sizes(copies_of_fractals: list[bool], page_size: int, has_own_table: bool) -> None:
    # few entries per row, so that the small cache has fewer pages than the table has entries
    paging = Paging("PA_NZ", page_size, spare_columns=9)
    batch = DECODE.but(paging=paging, head_dim=80, head_dim_v=48)
    (q, k, v), options = in_a_large_cache(batch) if has_own_table else batch.tensors()
    out, lse = flash_attn(q, k, v, **options)
    assert copies_of_fractals == [has_own_table]
    assert_accurate(out, lse, q, k, v, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dims", [(16, 16), (80, 48), (128, 64), (64, 128), (192, 128), (256, 256)], ids=str
)
def test_head_dims(copies_of_fractals: list[bool], dims: tuple[int, int]) -> None:
    for batch in (DECODE, MIXED):
        batch.but(head_dim=dims[0], head_dim_v=dims[1]).check()
    assert len(copies_of_fractals) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_dtypes(copies_of_fractals: list[bool], dtype: torch.dtype) -> None:
    for batch in (DECODE, MIXED):
        batch.but(dtype=dtype, has_sinks=True).check()
    assert len(copies_of_fractals) == 2


@pytest.mark.parametrize("mask", MASKS)
def test_masks(copies_of_fractals: list[bool], mask: str) -> None:
    for batch in (DECODE, MIXED):
        batch.but(mask=mask, paging=Paging("PA_NZ", 16)).check()
    assert len(copies_of_fractals) == 2


@pytest.mark.parametrize("batch", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize("has_own_table", [False, True], ids=["ids", "own table"])
def test_the_bits_of_loads_from_fractals_and_of_rows(
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    batch: Batch,
    has_own_table: bool,
) -> None:
    (q, k, v), options = in_a_large_cache(batch) if has_own_table else batch.tensors()
    metadata = batch.metadata(block_q=16, block_kv=48)
    loaded = flash_attn(q, k, v, metadata=metadata, **options)
    copies = request.getfixturevalue("copies_of_fractals")
    copied = flash_attn(q, k, v, metadata=metadata, **options)
    assert len(copies) == 1
    rows = [t.transpose(2, 3).flatten(-2).contiguous() for t in (k, v)]
    wanted = flash_attn(q, *rows, metadata=metadata, **options | {"layout_kv": "PA_BNBD"})
    for results in (loaded, wanted):
        assert torch.equal(copied[0], results[0])
        assert torch.equal(copied[1], results[1])


@pytest.mark.parametrize("planner", ["balanced", "section_stream_k"])
def test_plans_of_a_caller(copies_of_fractals: list[bool], planner: str) -> None:
    """Tables of pages of fractals, made with and without the page size, are tables of the call."""
    MIXED.check(planner=planner, num_aic=7)
    MIXED.check(planner=planner, num_aic=7, block_q=16, block_kv=16)
    MIXED.check(planner=planner, num_aic=3, page_size=None)
    MIXED.but(planned_q=(1, 90, 5, 4, 6), planned_kv=(600, 200, 300, 50, 70)).check(num_aic=7)
    assert len(copies_of_fractals) == 4


def test_a_plan_made_for_loads_from_fractals_serves_the_copy(
    request: pytest.FixtureRequest,
) -> None:
    metadata = MIXED.metadata()
    request.getfixturevalue("copies_of_fractals")
    (q, k, v), options = MIXED.tensors()
    out, lse = flash_attn(q, k, v, metadata=metadata, **options)
    assert_accurate(out, lse, q, k, v, **options)


@pytest.mark.parametrize("has_own_table", [False, True], ids=["ids", "own table"])
def test_sequences_share_pages(copies_of_fractals: list[bool], has_own_table: bool) -> None:
    batch = DECODE.but(q_lens=(1, 1, 1), kv_lens=(200, 160, 97))
    (q, k, v), options = in_a_large_cache(batch) if has_own_table else batch.tensors()
    options["block_table"][1:, :2] = options["block_table"][:1, :2]
    out, lse = flash_attn(q, k, v, **options)
    assert copies_of_fractals == [has_own_table]
    assert_accurate(out, lse, q, k, v, **options)


def test_strided_fractals(copies_of_fractals: list[bool]) -> None:
    (q, k, v), options = MIXED.tensors()
    both = torch.stack([k, v], 2)
    wanted = flash_attn(q, k, v, **options)
    out, lse = flash_attn(q, both[:, :, 0], both[:, :, 1], **options)
    assert len(copies_of_fractals) == 2
    assert torch.equal(out, wanted[0])
    assert torch.equal(lse, wanted[1])


def test_lengths_and_pages_change_in_place(copies_of_fractals: list[bool]) -> None:
    paging, heads, pages = Paging("PA_NZ", 48), (8, 2), 60
    generator = torch.Generator().manual_seed(3)
    k, v = (
        paging.from_rows(torch.randn(pages, 48, heads[1], 64, generator=generator).half())
        for _ in "kv"
    )
    metadata = flash_attn_metadata(
        *heads, 64, batch_size=3, max_seqlen_q=2, max_seqlen_kv=500, page_size=48,
        layout_kv="PA_NZ", mask_mode=3, num_aic=24,
    )  # fmt: skip
    used, table = torch.zeros(3, dtype=torch.int32), torch.zeros(3, 11, dtype=torch.int32)
    q = torch.randn(3, 2, heads[0], 64, generator=generator).half()
    options = {
        "seqused_kv": used,
        "block_table": table,
        "layout_kv": "PA_NZ",
        "mask_mode": 3,
        "softmax_scale": 0.125,
        "return_softmax_lse": True,
    }
    for kv_lens in ((500, 500, 500), (1, 499, 0), (49, 48, 470), (0, 0, 0)):
        used.copy_(torch.tensor(kv_lens))
        table.fill_(RUBBISH[0])
        for row, length in zip(table, kv_lens, strict=True):
            count = paging.pages_of(length)
            row[:count] = torch.randperm(pages, generator=generator)[:count]
        out, lse = flash_attn(q, k, v, metadata=metadata, **options)
        assert_accurate(out, lse, q, k, v, **options)
    assert copies_of_fractals == [True] * 4


def copied(
    lens: list[int], ids: list[list[int]], pages: int, longest_q: int = 1, **options: Any
) -> tuple[UnfoldedKeys, torch.Tensor]:
    """Copy pages of 32 tokens, 2 heads, D 48 and 16, whose every element is a number."""
    k, v = (torch.randn(pages, 2, fractals, 32, 16).half() for fractals in (3, 1))
    table, used = torch.tensor(ids, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32)
    q = torch.zeros(len(lens), longest_q, 4, 48).half()
    problem = validate_flash_attn(
        q, k, v, block_table=table, seqused_kv=used, layout_kv="PA_NZ", **options
    )
    return unfold(problem, KeyTensors(k, v, table), used, longest_q), k


def written(rows: torch.Tensor) -> dict[tuple[int, int], int]:
    """Keys of each page and head that were written, by number of them."""
    whole = ~rows.isnan().any(-1)
    assert torch.equal(whole, ~rows.isnan().all(-1))
    return {
        (page, head): int(whole[page, head].sum())
        for page, head in torch.nonzero(whole.any(-1)).tolist()
    }


@pytest.mark.parametrize("pages", [5, 6, 50])
def test_what_no_sequence_uses_is_not_copied(pages: int) -> None:
    """Every key once; lengths out of range are cut; pages that do not exist are left out."""
    ids = [[4, 2, 10**9], [-1, 0, 1], [2**31 - 1, 50, -5]]
    rows, k = copied([40, -3, 0], ids, pages)
    has_own_table = pages > 9
    assert (rows.sources is not None) == has_own_table
    assert len(rows.keys.k) == (9 if has_own_table else pages)
    first, second = (0, 1) if has_own_table else (4, 2)
    wanted = {(first, 0): 32, (first, 1): 32, (second, 0): 8, (second, 1): 8}
    for tensor in (rows.keys.k, rows.keys.v):
        assert written(tensor) == wanted
    assert torch.equal(rows.keys.k[first], k[4].transpose(1, 2).flatten(-2))
    if has_own_table:
        assert rows.keys.block_table is not None
        assert rows.keys.block_table.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    too_long, _ = copied([10**6], [[4, 2, -1]], pages)
    assert sum(written(too_long.keys.k).values()) == 2 * 64


def test_a_left_window_leaves_pages_out() -> None:
    ids = [[0, 1, 2, 3], [4, 5, 6, 7]]
    window = {"mask_mode": 4, "win_left": 31, "win_right": 0}
    # the first of 3 queries stands at 95 and sees 64, the first key of its page
    for longest_q, left in ((1, 2), (3, 2), (4, 1)):
        rows, _ = copied([98, 33], ids, 8, longest_q, **window)
        pages = sorted({page for page, _ in written(rows.keys.v)})
        assert pages == [*range(left, 4), 4, 5]


def test_where_the_kernels_load_fractals_nothing_is_copied() -> None:
    (q, k, v), options = DECODE.tensors()
    problem = validate_flash_attn(q, k, v, **options)
    assert problem.layout_kv == "PA_NZ"
    assert problem_of_rows(problem) is problem


@pytest.mark.parametrize("layout", ["PA_BBND", "PA_BNBD"])
def test_other_layouts_are_not_copied(copies_of_fractals: list[bool], layout: str) -> None:
    DECODE.but(paging=Paging(layout, 48)).check()
    assert not copies_of_fractals
