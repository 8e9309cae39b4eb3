"""What every plan must hold, on random work, against the walk of the kernels."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton.planner import AttnWork, Plan, make_plan
from fa_triton.planner.cost import CYCLES_PER_UNIT
from fa_triton.planner.statistics import plan_cost
from fa_triton.planner.table import decode_segments, encode, read_header
from tests.planner.walk import Visit, geometry, walk
from tests.planner.works import attn_works, block_sizes, machines

FORMS: list[tuple[str, dict[str, bool]]] = [
    ("section_stream_k", {}),
    ("balanced", {}),
    ("balanced", {"one_head_rows": True}),
    ("balanced", {"batch_invariant": True}),
    ("balanced", {"from_bounds": True}),
]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    planner, form = draw(st.sampled_from(FORMS))
    # parts of these are long
    longest_kv = 6000 if "batch_invariant" in form or "from_bounds" in form else 300
    return make_plan(
        planner,
        draw(attn_works(longest_kv=longest_kv)),
        **draw(machines()),
        **draw(block_sizes()),
        **form,
    )


def pieces_by_row(visits: list[Visit]) -> dict[tuple[int, int], list[Visit]]:
    rows: dict[tuple[int, int], list[Visit]] = defaultdict(list)
    for visit in visits:
        rows[visit.bn, visit.m].append(visit)
    return rows


@given(plans())
@settings(max_examples=150, deadline=None)
def test_every_visible_block_is_visited_once(plan: Plan) -> None:
    shape = geometry(plan)
    visited = Counter((v.bn, v.m, s2) for v in walk(plan) for s2 in v.blocks)
    expected = {
        (bn, m, s2)
        for bn in range(plan.grid.num_bn)
        for m in range(shape.row_blocks(bn))
        for s2 in shape.visible(bn, m)
    }
    assert set(visited) == expected
    assert not visited or max(visited.values()) == 1


@given(plans())
@settings(max_examples=150, deadline=None)
def test_planned_blocks_are_the_visible_ones(plan: Plan) -> None:
    shape = geometry(plan)
    grid = plan.grid
    for seq in range(grid.batch_size):
        bn = seq * grid.heads
        assert grid.offsets[seq + 1] - grid.offsets[seq] == shape.row_blocks(bn)
        for m in range(shape.row_blocks(bn)):
            row = int(grid.offsets[seq]) + m
            planned = range(grid.first[row], grid.first[row] + grid.blocks[row])
            visible = shape.visible(bn, m)
            assert grid.rows[row] == shape.rows(bn, m)
            if shape.group_outer:
                # the published planner counts rows that span heads generously
                assert set(visible) <= set(planned)
            else:
                assert tuple(planned) == visible


@given(plans())
@settings(max_examples=150, deadline=None)
def test_partial_rows_meet_their_combine_tasks(plan: Plan) -> None:
    words = encode(plan)
    header = read_header(words)
    visits = list(walk(plan))
    slots = [v.slot for v in visits if v.slot is not None]
    assert len(slots) == len(set(slots))
    assert all(slot < header.num_slots for slot in slots)
    for section in range(plan.num_sections):
        own = sorted(v.slot for v in visits if v.section == section and v.slot is not None)
        first = section * header.slots_per_section
        assert own == list(range(first, first + len(own)))
    if not plan.is_fd:
        assert not slots
        assert header.num_tasks == 0

    columns = plan.work.columns
    covered: Counter[tuple[int, int, int]] = Counter()
    task_slots: dict[tuple[int, int], range] = {}
    section_of = np.repeat(np.arange(len(plan.task_ranges)), plan.task_ranges[:, 1]) // plan.num_aiv
    for task, section in zip(plan.tasks.tolist(), section_of.tolist(), strict=True):
        bn, m, first_slot, count, first_row, rows, first_column, task_columns = task
        assert rows > 0
        assert task_columns > 0
        first_slot += section * header.slots_per_section
        assert task_slots.setdefault((bn, m), range(first_slot, first_slot + count)) == range(
            first_slot, first_slot + count
        )
        for row in range(first_row, first_row + rows):
            for column in range(first_column, first_column + task_columns, 8):
                covered[bn, m, row * columns + column] += 1
    split = {key: v for key, v in pieces_by_row(visits).items() if v[0].slot is not None}
    assert {key: list(slot_range) for key, slot_range in task_slots.items()} == {
        key: [v.slot for v in pieces] for key, pieces in split.items()
    }
    shape = geometry(plan)
    cells = {
        (bn, m, row * columns + column)
        for bn, m in split
        for row in range(shape.rows(bn, m))
        for column in range(0, columns, 8)
    }
    assert set(covered) == cells
    assert not covered or max(covered.values()) == 1


@given(plans())
@settings(max_examples=80, deadline=None)
def test_ranges_chain(plan: Plan) -> None:
    if plan.planner == "balanced" and plan.num_sections > 1:
        return
    sections = (plan.num_sections, plan.num_aic, 3)
    for starts, ends in zip(
        plan.starts.reshape(sections), plan.ends.reshape(sections), strict=True
    ):
        used = [i for i in range(plan.num_aic) if tuple(starts[i]) != tuple(ends[i])]
        assert used == list(range(len(used)))
        for core in used[1:]:
            assert tuple(starts[core]) == tuple(ends[core - 1])
        for core in used:
            assert tuple(starts[core]) < tuple(ends[core])
        if used:
            assert tuple(ends[used[-1]]) == (plan.grid.num_bn, 0, 0)


@given(plans())
@settings(max_examples=80, deadline=None)
def test_dealt_row_blocks_are_whole(plan: Plan) -> None:
    if plan.planner == "balanced" and plan.num_sections > 1:
        assert not plan.is_fd
        assert not plan.cuts.any()
        # a core is done with its first range when it takes the next
        used = (plan.row_blocks > 0).reshape(plan.num_sections, plan.num_aic)
        assert (used[:-1] | ~used[1:]).all()


@given(plans())
@settings(max_examples=80, deadline=None)
def test_balanced_visits_every_row_block(plan: Plan) -> None:
    if plan.planner != "balanced":
        return
    shape = geometry(plan)
    rows = pieces_by_row(list(walk(plan)))
    assert set(rows) == {
        (bn, m) for bn in range(plan.grid.num_bn) for m in range(shape.row_blocks(bn))
    }
    assert all(len(pieces) == 1 or pieces[0].slot is not None for pieces in rows.values())


@given(plans())
@settings(max_examples=80, deadline=None)
def test_cost_of_a_core_is_the_cost_of_its_blocks(plan: Plan) -> None:
    if plan.is_fd or (plan.planner == "section_stream_k" and plan.work.layout_q == "BNSD"):
        return
    shape = geometry(plan)
    units = np.zeros(plan.num_sections * plan.num_aic, dtype=np.int64)
    for visit in walk(plan):
        keys = int(plan.work.kv_lens[visit.bn // shape.heads])
        for s2 in visit.blocks:
            block_keys = min(keys - s2 * plan.block_kv, plan.block_kv)
            rows = shape.rows(visit.bn, visit.m)
            units[visit.section * plan.num_aic + visit.core] += 6 * -(-rows // 16) + 10 * -(
                -block_keys // 64
            )
    cost = plan_cost(plan)
    np.testing.assert_array_equal(cost.segment_cycles, units * CYCLES_PER_UNIT)
    assert cost.total_cycles == units.sum() * CYCLES_PER_UNIT


@given(attn_works(longest_q=400, longest_kv=6000), machines(), block_sizes(), st.booleans())
@settings(max_examples=250, deadline=None)
def test_balanced_is_never_slower(
    work: AttnWork, machine: dict[str, int], sizes: dict[str, int], long_keys: bool
) -> None:
    # the row blocks must be the same ones: section_stream_k orders the rows of BNSD otherwise
    layout = "BSND" if work.layout_q == "BNSD" else work.layout_q
    work = replace(work, kv_lens=work.kv_lens * (16 if long_keys else 1), layout_q=layout)
    balanced = plan_cost(make_plan("balanced", work, **machine, **sizes))
    published = plan_cost(make_plan("section_stream_k", work, **machine, **sizes))
    assert balanced.makespan <= published.makespan


@given(attn_works(longest_q=400, longest_kv=6000), machines(), block_sizes())
@settings(max_examples=100, deadline=None)
def test_other_row_blocks_hardly_matter(
    work: AttnWork, machine: dict[str, int], sizes: dict[str, int]
) -> None:
    """section_stream_k lays the rows of BNSD out head after head and meets other row blocks."""
    work = replace(work, layout_q="BNSD")
    balanced = plan_cost(make_plan("balanced", work, **machine, **sizes))
    published = plan_cost(make_plan("section_stream_k", work, **machine, **sizes))
    assert balanced.makespan <= published.makespan * 1.01


@given(plans())
@settings(max_examples=50, deadline=None)
def test_plans_are_deterministic(plan: Plan) -> None:
    again = make_plan(
        plan.planner,
        plan.work,
        num_aic=plan.shared_cores or plan.num_aic,
        num_aiv=plan.num_aiv,
        block_q=plan.block_q,
        block_kv=plan.block_kv,
        one_head_rows=plan.one_head_rows,
        batch_invariant=plan.batch_invariant,
        from_bounds=plan.shared_cores is not None and not plan.batch_invariant,
    )
    np.testing.assert_array_equal(encode(plan), encode(again))


@given(plans())
@settings(max_examples=50, deadline=None)
def test_table_holds_the_plan(plan: Plan) -> None:
    words = encode(plan)
    assert words.dtype == np.int32
    header = read_header(words)
    segments, tasks = decode_segments(words)
    np.testing.assert_array_equal(segments[:, 0:3], plan.starts)
    np.testing.assert_array_equal(segments[:, 3:6], plan.ends)
    np.testing.assert_array_equal(segments[:, 6], plan.first_slots)
    kept = 6 if header.is_section_stream_k else 8
    np.testing.assert_array_equal(tasks[:, :kept], plan.tasks[:, :kept])
    assert not words[header.used_words :].any()


@pytest.mark.parametrize("planner", ["balanced", "section_stream_k"])
@pytest.mark.parametrize(
    "lengths",
    [([0], [0]), ([0], [100]), ([100], [0]), ([0, 3, 0], [5, 0, 7]), ([5], [1])],
    ids=["nothing", "no_queries", "no_keys", "mixed", "more_queries_than_keys"],
)
def test_nothing_to_see(planner: str, lengths: tuple[list[int], list[int]]) -> None:
    work = AttnWork(*lengths, num_heads_q=4, num_heads_kv=2, head_dim=64, mask_mode=3)
    plan = make_plan(planner, work, num_aic=4, num_aiv=8, block_q=16, block_kv=64)
    assert not plan.is_fd
    blocks = [v.blocks for v in walk(plan) if v.blocks]
    assert len(blocks) == (2 if lengths == ([5], [1]) else 0)
