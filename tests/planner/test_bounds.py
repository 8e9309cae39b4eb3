"""Plans that meet shorter lengths on the device: correct always, even if they are made for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton.planner import AttnWork, Plan, make_plan
from fa_triton.planner.cost import BARRIER_CYCLES
from fa_triton.planner.statistics import plan_cost
from fa_triton.planner.table import encode, read_header
from tests.planner.walk import geometry, walk, walk_actual
from tests.planner.works import attn_works, block_sizes, machines

FORMS: list[dict[str, bool]] = [
    {},
    {"one_head_rows": True},
    {"batch_invariant": True},
    {"from_bounds": True},
    {"from_bounds": True, "one_head_rows": True},
]


@st.composite
def shorter(draw: st.DrawFn, work: AttnWork) -> AttnWork:
    """The same batch with lengths of at most the planned ones."""
    q_lens = [draw(st.integers(0, int(n))) for n in work.q_lens]
    kv_lens = [draw(st.integers(0, int(n))) for n in work.kv_lens]
    return replace(work, q_lens=q_lens, kv_lens=kv_lens)


@given(st.data(), st.sampled_from(FORMS), machines(), block_sizes())
@settings(max_examples=250, deadline=None)
def test_shorter_lengths_are_visited_once(
    data: st.DataObject, form: dict[str, bool], machine: dict[str, int], sizes: dict[str, int]
) -> None:
    long_keys = data.draw(st.booleans())
    work = data.draw(attn_works(longest_kv=5000 if long_keys else 300))
    plan = make_plan("balanced", work, **machine, **sizes, **form)
    actual = data.draw(shorter(work))
    shape = replace(geometry(plan), work=actual, block_kv=1)
    visits = list(walk_actual(plan, actual))
    seen: Counter[tuple[int, int, int]] = Counter()
    for visit in visits:
        seen.update((visit.bn, visit.m, key) for key in visit.keys)
    expected = {
        (bn, m, key)
        for bn in range(plan.grid.num_bn)
        for m in range(shape.row_blocks(bn))
        for key in shape.visible(bn, m)
    }
    assert set(seen) == expected
    assert not seen or max(seen.values()) == 1
    # every row block that there is has an owner, and partial ones have all their slots
    slots: dict[tuple[int, int], list[int | None]] = defaultdict(list)
    for visit in visits:
        slots[visit.bn, visit.m].append(visit.slot)
    rows = {(bn, m) for bn in range(plan.grid.num_bn) for m in range(shape.row_blocks(bn))}
    assert set(slots) == rows
    tasks = {(t[0], t[1]): range(t[2], t[2] + t[3]) for t in plan.tasks.tolist()}
    for place, found in slots.items():
        assert found == list(tasks[place]) if place in tasks else found == [None]


@given(attn_works(longest_kv=3000), st.sampled_from(FORMS), machines(), block_sizes())
@settings(max_examples=60, deadline=None)
def test_both_walks_agree_on_the_planned_lengths(
    work: AttnWork, form: dict[str, bool], machine: dict[str, int], sizes: dict[str, int]
) -> None:
    plan = make_plan("balanced", work, **machine, **sizes, **form)
    by_count = [(v.bn, v.m, v.slot) for v in walk(plan)]
    by_position = [(v.bn, v.m, v.slot) for v in walk_actual(plan, work)]
    assert by_count == by_position


@given(st.data(), st.sampled_from(FORMS), machines())
@settings(max_examples=60, deadline=None)
def test_cost_of_shorter_lengths_is_the_cost_of_their_blocks(
    data: st.DataObject, form: dict[str, bool], machine: dict[str, int]
) -> None:
    """With key blocks of 64 and rows of 16 every block costs 16 units, whole or not."""
    work = data.draw(attn_works(longest_kv=1500))
    plan = make_plan("balanced", work, **machine, block_q=16, block_kv=64, **form)
    actual = data.draw(shorter(work))
    cost = plan_cost(plan, actual)
    tiles = sum(
        -(-v.keys.stop // 64) - v.keys.start // 64 for v in walk_actual(plan, actual) if v.keys
    )
    assert cost.total_cycles == tiles * 16 * 22
    if not plan.is_fd:
        assert cost.segment_cycles.sum() == cost.total_cycles
    assert cost.makespan >= cost.ideal


def decodes(lengths: np.ndarray) -> AttnWork:
    return AttnWork(np.ones(lengths.size), lengths, 32, 8, 128, mask_mode=3)


def decode_plan(work: AttnWork, **form: Any) -> Plan:
    return make_plan("balanced", work, num_aic=24, num_aiv=48, block_q=64, block_kv=256, **form)


@pytest.mark.parametrize("batch", [4, 16, 64, 256])
@pytest.mark.parametrize("spread", ["full", "uniform", "lognormal"])
def test_lengths_unknown_to_the_plan_are_spread(batch: int, spread: str) -> None:
    bound = 32768
    generator = np.random.default_rng(batch)
    lengths = {
        "full": np.full(batch, bound),
        "uniform": generator.integers(1, bound + 1, batch),
        "lognormal": np.clip(generator.lognormal(0, 1, batch) * bound / 8, 1, bound),
    }[spread].astype(np.int64)
    bounds, actual = decodes(np.full(batch, bound)), decodes(lengths)
    unaware = plan_cost(decode_plan(bounds), actual)
    aware = plan_cost(decode_plan(bounds, from_bounds=True), actual)
    assert aware.ratio < (1.04 if spread == "full" else 1.3)
    if spread != "full":
        assert aware.ratio < unaware.ratio


def test_prefills_of_unknown_lengths_are_spread() -> None:
    lengths = np.random.default_rng(0).integers(1, 4097, 16)
    bound = np.full(16, 4096)
    bounds = AttnWork(bound, bound, 8, 8, 128, mask_mode=3)
    actual = AttnWork(lengths, lengths, 8, 8, 128, mask_mode=3)
    options = {"num_aic": 24, "num_aiv": 48, "block_q": 128, "block_kv": 128}
    unaware = make_plan("balanced", bounds, **options, one_head_rows=True)
    aware = make_plan("balanced", bounds, **options, one_head_rows=True, from_bounds=True)
    assert not aware.is_fd
    assert plan_cost(aware, actual).ratio < 1.05 < plan_cost(unaware, actual).ratio


def test_many_programs_but_no_more_than_useful() -> None:
    one = decode_plan(decodes(np.array([131072])), from_bounds=True)
    header = read_header(encode(one))
    assert not header.batch_invariant
    # 8 heads in 96 parts each: 32 programs per core
    assert header.num_aic == 32 * 24
    short = decode_plan(decodes(np.array([512])), from_bounds=True)
    assert short.num_aic == 8
    assert not short.is_fd
    many = decode_plan(decodes(np.full(4096, 1000)), from_bounds=True)
    assert many.num_aic <= 2 * 32 * 24


def test_planned_lengths_are_the_default() -> None:
    plan = decode_plan(decodes(np.array([5000, 100])))
    cost, same = plan_cost(plan), plan_cost(plan, plan.work)
    np.testing.assert_array_equal(cost.segment_cycles, same.segment_cycles)
    assert (cost.makespan, cost.ideal) == (same.makespan, same.ideal)
    assert cost.makespan > BARRIER_CYCLES
