"""Batch-invariant plans: the cuts of a sequence follow from the sequence, whatever is beside it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton.planner import AttnWork, Plan, make_plan
from fa_triton.planner.invariant import INVARIANT_KEYS, INVARIANT_SPLIT_ROWS
from fa_triton.planner.statistics import plan_cost
from fa_triton.planner.table import encode, read_header
from tests.planner.walk import geometry, walk
from tests.planner.works import attn_works, block_sizes, machines

# key blocks of one part: (head, row block, key blocks, whether it is partial)
Part = tuple[int, int, tuple[int, ...], bool]


def plan_invariant(work: AttnWork, num_aic: int = 4, **options: Any) -> Plan:
    options = {"num_aiv": 2 * num_aic, **options}
    return make_plan("balanced", work, num_aic=num_aic, batch_invariant=True, **options)


def parts_by_sequence(plan: Plan) -> list[list[Part]]:
    """Parts of every sequence in the order of their slots, as the kernels find them."""
    parts: list[list[Part]] = [[] for _ in range(plan.work.batch_size)]
    for visit in walk(plan):
        seq, head = divmod(visit.bn, plan.grid.heads)
        parts[seq].append((head, visit.m, visit.blocks, visit.slot is not None))
    return parts


def only(work: AttnWork, seq: int) -> AttnWork:
    here = slice(seq, seq + 1)
    return replace(work, q_lens=work.q_lens[here], kv_lens=work.kv_lens[here])


works = attn_works(longest_q=90, longest_kv=9000)


@given(works, machines(), machines(), block_sizes())
@settings(max_examples=100, deadline=None)
def test_parts_are_those_of_the_sequence_alone(
    work: AttnWork, machine: dict[str, int], other: dict[str, int], sizes: dict[str, int]
) -> None:
    together = parts_by_sequence(plan_invariant(work, **machine, **sizes))
    for seq in range(work.batch_size):
        alone = plan_invariant(only(work, seq), **other, **sizes)
        assert parts_by_sequence(alone) == [together[seq]]


@given(works, machines(), block_sizes())
@settings(max_examples=100, deadline=None)
def test_cuts_are_multiples_from_key_0(
    work: AttnWork, machine: dict[str, int], sizes: dict[str, int]
) -> None:
    plan = plan_invariant(work, **machine, **sizes)
    part_blocks = -(-INVARIANT_KEYS // plan.block_kv)
    shape = geometry(plan)
    for visit in walk(plan):
        visible = shape.visible(visit.bn, visit.m)
        if shape.head_rows(visit.bn // shape.heads) > INVARIANT_SPLIT_ROWS or not visible:
            assert visit.slot is None
            assert visit.blocks == visible
            continue
        # each part is exactly one stretch between two multiples, none is empty
        stretches = {block // part_blocks for block in visit.blocks}
        assert len(stretches) == 1
        stretch = stretches.pop()
        assert visit.blocks == tuple(b for b in visible if b // part_blocks == stretch)
        is_whole = visit.blocks == visible
        assert (visit.slot is None) == is_whole


@given(works, machines(), block_sizes())
@settings(max_examples=60, deadline=None)
def test_segments_hold_one_part_or_whole_row_blocks(
    work: AttnWork, machine: dict[str, int], sizes: dict[str, int]
) -> None:
    plan = plan_invariant(work, **machine, **sizes)
    visits: dict[int, list[bool]] = defaultdict(list)
    for visit in walk(plan):
        visits[visit.core].append(visit.slot is not None)
    assert all(partial == [True] or not any(partial) for partial in visits.values())


def test_header_counts_segments_and_names_the_form() -> None:
    work = AttnWork([1, 1, 1], [10_000, 100, 2048], 8, 2, 128, mask_mode=3)
    plan = plan_invariant(work, 20, block_q=32, block_kv=128)
    header = read_header(encode(plan))
    # 5 parts per head of the first sequence, the others are whole and fill less than 20 shares
    assert header.num_slots == 2 * 5
    assert header.num_aic == plan.num_aic > 10
    assert header.num_aiv == 40
    assert header.num_sections == 1
    assert header.batch_invariant
    assert not header.one_head_rows
    plain = make_plan("balanced", work, num_aic=20, num_aiv=40)
    assert not read_header(encode(plain)).batch_invariant


def test_rows_of_one_head_where_nothing_is_merged() -> None:
    work = AttnWork([1], [5000], 2, 2, 128, mask_mode=3)
    header = read_header(encode(plan_invariant(work, one_head_rows=True)))
    assert header.batch_invariant
    assert header.one_head_rows


def test_parts_in_front_of_a_left_window_are_left_out() -> None:
    work = AttnWork([1], [10_000], 1, 1, 128, mask_mode=4, win_left=3000, win_right=0)
    plan = plan_invariant(work, block_q=16, block_kv=64)
    (parts,) = parts_by_sequence(plan)
    first = (10_000 - 1 - 3000) // 64
    assert [part[2][0] for part in parts] == [first, 8192 // 64]


def test_parts_are_whole_key_blocks() -> None:
    """Pages of 48 keys: a part is 2064 keys long."""
    work = AttnWork([1], [5000], 1, 1, 128)
    (parts,) = parts_by_sequence(plan_invariant(work, block_q=16, block_kv=48))
    assert [part[2][0] for part in parts] == [0, 43, 86]


def test_programs_take_turns_on_the_cores() -> None:
    work = AttnWork([1] * 3, [8192] * 3, 1, 1, 128)
    cost = plan_cost(plan_invariant(work, 4, block_q=16, block_kv=128))
    assert cost.segment_cycles.size == 12
    assert cost.core_cycles.shape == (1, 4)
    assert len(set(cost.core_cycles[0].tolist())) == 1
    assert cost.core_cycles.sum() == cost.segment_cycles.sum()


def test_runs_of_whole_rows_are_about_a_share() -> None:
    work = AttnWork([512] * 4, [512] * 4, 8, 2, 128, mask_mode=3)
    plan = plan_invariant(work, 8, block_q=32, block_kv=128)
    assert plan.num_aic == 8
    assert plan_cost(plan).ratio < 1.05


def test_blocks_follow_no_argument() -> None:
    work = AttnWork([1], [5000], 8, 1, 128, mask_mode=3, max_seqlen_q=1, max_seqlen_kv=5000)
    other = replace(work, max_seqlen_q=-1, max_seqlen_kv=-1)
    np.testing.assert_array_equal(encode(plan_invariant(work)), encode(plan_invariant(other)))


def test_a_launch_has_only_so_many_programs() -> None:
    work = AttnWork([1] * 1024, [128 * 1024] * 1024, 32, 8, 128)
    with pytest.raises(ValueError, match=r"at most 65535 programs, got 524288 .* split the batch"):
        plan_invariant(work)


def test_section_stream_k_is_not_invariant() -> None:
    work = AttnWork([1], [1], 1, 1, 64)
    with pytest.raises(ValueError, match="use planner='balanced'"):
        make_plan("section_stream_k", work, num_aic=1, num_aiv=2, batch_invariant=True)


def test_merged_heads_stay_merged() -> None:
    work = AttnWork([1], [1], 4, 2, 64)
    with pytest.raises(ValueError, match="`one_head_rows` must be False"):
        plan_invariant(work, one_head_rows=True)


@given(st.integers(0, 3), st.integers(0, 3))
def test_nothing_to_do(q_len: int, kv_len: int) -> None:
    work = AttnWork([q_len, 0], [kv_len, 5], 2, 1, 64, mask_mode=3)
    plan = plan_invariant(work)
    assert len(list(walk(plan))) == (1 if q_len else 0)
    assert not plan.is_fd
