"""How even the balanced plans are: published workloads, few cores, odd batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_triton.planner import AttnWork, Plan, make_plan
from fa_triton.planner.cost import BARRIER_CYCLES, CYCLES_PER_UNIT
from fa_triton.planner.statistics import PlanCost, plan_cost
from perf.planner_workloads import planner_workloads
from tests.planner.walk import walk

WORKLOADS = planner_workloads()


@pytest.mark.parametrize("num_aic", [36, 24, 20])
@pytest.mark.parametrize("name", WORKLOADS)
def test_goal_of_a_workload(name: str, num_aic: int) -> None:
    """The goals are given to three decimals, and so they are compared."""
    workload = WORKLOADS[name]
    cost = plan_cost(workload.plan("balanced", num_aic))
    assert cost.total_cycles == workload.total_block_cost * CYCLES_PER_UNIT
    assert round(cost.ratio, 3) <= workload.goals[num_aic]


@pytest.mark.parametrize("num_aic", [36, 24, 20, 8, 4, 2, 1])
@pytest.mark.parametrize("name", WORKLOADS)
def test_never_slower_than_section_stream_k(name: str, num_aic: int) -> None:
    balanced = plan_cost(WORKLOADS[name].plan("balanced", num_aic))
    published = plan_cost(WORKLOADS[name].plan("section_stream_k", num_aic))
    assert balanced.makespan <= published.makespan


@pytest.mark.parametrize("num_aic", [36, 24, 20])
def test_order_of_the_batch_hardly_matters(num_aic: int) -> None:
    """Decodes in front of the prefills, as serving engines order them."""
    forward = WORKLOADS["mixed_chunked"].work
    work = replace(forward, q_lens=forward.q_lens[::-1], kv_lens=forward.kv_lens[::-1])
    plan = make_plan(
        "balanced", work, num_aic=num_aic, num_aiv=2 * num_aic, block_q=128, block_kv=128
    )
    assert plan_cost(plan).ratio < 1.001


def decode_cost(num_aic: int, kv_len: int, batch: int = 1) -> tuple[Plan, PlanCost]:
    work = AttnWork([1] * batch, [kv_len] * batch, 4, 1, 128, mask_mode=3)
    plan = make_plan(
        "balanced", work, num_aic=num_aic, num_aiv=2 * num_aic, block_q=16, block_kv=128
    )
    return plan, plan_cost(plan)


def test_one_core_gets_everything() -> None:
    plan, cost = decode_cost(1, 100_000, batch=3)
    assert not plan.is_fd
    assert plan.row_blocks.tolist() == [3]
    assert cost.ratio == 1.0


def test_two_cores_split_a_long_decode_only() -> None:
    long_plan, long_cost = decode_cost(2, 128 * 64)
    assert long_plan.is_fd
    assert len(set(long_plan.starts[:, 2].tolist())) == 2
    assert long_cost.ratio < 1.1
    # two blocks: one block less on the slower core is not worth a combine phase
    short_plan, short_cost = decode_cost(2, 128 * 2)
    assert not short_plan.is_fd
    assert short_cost.makespan < short_cost.total_cycles // 2 + BARRIER_CYCLES


def test_two_cores_leave_rows_whole_where_they_balance() -> None:
    plan, cost = decode_cost(2, 4096, batch=8)
    assert not plan.is_fd
    assert cost.ratio == 1.0


def test_more_cores_than_blocks() -> None:
    plan, _ = decode_cost(36, 128 * 3)
    assert sum(len(visit.blocks) for visit in walk(plan)) == 3


def test_a_row_longer_than_the_share_is_split_in_a_prefill_too() -> None:
    work = AttnWork([200, 1], [200, 65536], 4, 1, 128, mask_mode=3)
    plan = make_plan("balanced", work, num_aic=8, num_aiv=16, block_q=64, block_kv=256)
    assert plan.is_fd
    assert plan_cost(plan).ratio < 1.2
