"""What a plan is made of: tiles, pages, batch invariance, and when a kept plan serves again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.attention.metadata import PlannedCall, check_belongs
from fa_triton.attention.plans import PlanOptions, plan_call
from fa_triton.attention.rows import INVARIANT_ROWS
from fa_triton.attention.tiles import kv_step
from fa_triton.planner.table import read_header
from fa_triton.tile_config import TileKey, choose_tile
from fa_triton.validation import HostLengths, validate_metadata
from tests.validation.calls import metadata

CPU = torch.device("cpu")


def plan(q_lens: list[int], kv_lens: list[int], options: Any = None, **changes: Any) -> PlannedCall:
    """Plan lengths on the CPU, also what the kernels may not run."""
    longest = {"max_seqlen_q": max(q_lens), "max_seqlen_kv": max(kv_lens)}
    call = metadata(batch_size=len(q_lens), **longest, **changes)
    problem = validate_metadata(**call)
    lengths = HostLengths(np.array(q_lens, np.int64), np.array(kv_lens, np.int64))
    return plan_call(problem, lengths, CPU, options=options)


@pytest.mark.parametrize("page_size", [16, 48, 64, 80, 128, 1024])
def test_key_blocks_on_pages_are_whole_steps(page_size: int) -> None:
    flat = plan([1] * 3, [500] * 3).header.block_kv
    header = plan([1] * 3, [500] * 3, layout_kv="PA_BBND", page_size=page_size).header
    step = kv_step(page_size, flat)
    assert page_size % step == 0
    assert header.block_kv % step == 0
    assert flat // 2 < header.block_kv <= flat


def test_a_given_key_block_wins_over_the_page() -> None:
    options = PlanOptions(block_kv=64)
    header = plan([1], [500], options, layout_kv="PA_BBND", page_size=48).header
    assert header.block_kv == 64


def test_a_kept_plan_knows_its_pages() -> None:
    lengths = ([1, 1, 1], [300, 300, 300])
    pages = [plan(*lengths, layout_kv="PA_BBND", page_size=size) for size in (None, 48, 80)]
    assert len({planned.table for planned in pages}) == 3
    again = plan(*lengths, layout_kv="PA_BBND", page_size=48)
    assert again.table is pages[1].table


def test_a_kept_plan_knows_whether_it_is_invariant() -> None:
    lengths = ([1, 1, 1], [300, 300, 300])
    free, invariant = plan(*lengths), plan(*lengths, batch_invariant=True)
    assert free.table is not invariant.table
    assert (free.header.batch_invariant, invariant.header.batch_invariant) == (False, True)
    assert plan(*lengths, batch_invariant=True).table is invariant.table


@pytest.mark.parametrize("q_lens", [[1], [1, 700], [700, 700, 700]], ids=str)
@pytest.mark.parametrize("mask_mode", [0, 3])
def test_invariant_blocks_and_rows_do_not_follow_the_batch(
    q_lens: list[int], mask_mode: int
) -> None:
    header = plan(q_lens, [900] * len(q_lens), mask_mode=mask_mode, batch_invariant=True).header
    mask = "causal" if mask_mode else "none"
    tile = choose_tile(TileKey("cpu", 64, "16bit", mask, INVARIANT_ROWS))
    assert (header.block_q, header.block_kv) == (tile.block_q, tile.block_kv)
    assert not header.one_head_rows


def test_invariant_rows_of_single_heads_stay_single() -> None:
    header = plan([1, 700], [900, 900], num_heads_kv=4, batch_invariant=True).header
    assert header.one_head_rows


@pytest.mark.parametrize("wanted", [False, True])
def test_invariance_of_plan_and_call_must_agree(wanted: bool) -> None:
    header = plan([8, 8, 8], [16, 16, 16], batch_invariant=not wanted).header
    problem = validate_metadata(**metadata(batch_invariant=wanted))
    with pytest.raises(ValueError, match="`metadata` must be made for the batch_invariant="):
        check_belongs(problem, header)
    check_belongs(replace(problem, batch_invariant=not wanted), header)


PACKED = {"layout_q": "TND", "layout_kv": "TND", "layout_out": "TND", "mask_mode": 3}
BOUNDS = {"batch_size": 4, "max_seqlen_q": 1, "max_seqlen_kv": 3000}


def test_bounds_alone_make_a_plan_for_shorter_lengths() -> None:
    """So many programs that those with short sequences do not keep the others waiting."""
    bounds = flash_attn_metadata(8, 2, 64, **BOUNDS, **PACKED)
    cu_q = torch.arange(5, dtype=torch.int32)
    lengths = flash_attn_metadata(8, 2, 64, cu_seqlens_q=cu_q, cu_seqlens_kv=3000 * cu_q, **PACKED)
    assert bounds.device == torch.get_default_device()
    from_bounds, from_lengths = read_header(bounds.numpy()), read_header(lengths.numpy())
    assert from_bounds.num_aic > from_lengths.num_aic
    assert (from_bounds.longest_q, from_bounds.longest_kv) == (1, 3000)


def test_bounds_and_equal_lengths_are_kept_apart() -> None:
    bounds = flash_attn_metadata(8, 2, 64, **BOUNDS, **PACKED)
    used = torch.full((4,), 3000, dtype=torch.int32)
    lengths = flash_attn_metadata(8, 2, 64, **BOUNDS, **PACKED, seqused_kv=used)
    assert bounds.shape != lengths.shape
    assert flash_attn_metadata(8, 2, 64, **BOUNDS, **PACKED) is bounds


def test_pages_are_planned_from_bounds() -> None:
    table = flash_attn_metadata(**metadata(layout_kv="PA_NZ", page_size=64))
    header = read_header(table.numpy())
    assert (header.batch_size, header.longest_q, header.longest_kv) == (3, 8, 16)


def test_a_plan_inside_the_call_reads_lengths_on_the_cpu() -> None:
    """Bounds that are far off cost nothing where the lengths can be read."""
    q, k = torch.randn(2, 2, 64), torch.randn(30, 2, 64)
    packed = {"layout_q": "TND", "layout_kv": "TND", "layout_out": "TND"}
    cu_q = torch.tensor([0, 1, 2], dtype=torch.int32)
    wrong = torch.tensor([0, 40, 30], dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens_kv"):
        flash_attn(
            q,
            k,
            k,
            cu_seqlens_q=cu_q,
            cu_seqlens_kv=wrong,
            max_seqlen_q=1,
            max_seqlen_kv=30,
            **packed,
        )
