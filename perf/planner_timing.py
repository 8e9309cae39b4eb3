"""How long planning takes on this CPU: batches as a serving engine plans them at every step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fa_triton.planner import PLANNERS, AttnWork, Plan, make_plan
from fa_triton.planner.table import encode

SEED = 0


@dataclass(frozen=True)
class PlanningCase:
    """A batch that is planned again and again.

    Attributes:
        name: As in results.
        title: In words.
        work: The batch.
        block_q: Rows of a row block.
        block_kv: Keys of a key block.
        goal_ms: Median that ``balanced`` shall reach.
    """

    name: str
    title: str
    work: AttnWork
    block_q: int
    block_kv: int
    goal_ms: float


@dataclass(frozen=True)
class PlanningTime:
    """Milliseconds; ``encode_ms`` is the median of writing the table, not part of the others.

    Tables are written after all plans are timed: those of section_stream_k are so long (9 MB for
    256 decodes) that they empty the caches for whatever follows.
    """

    median_ms: float
    best_ms: float
    encode_ms: float
    rounds: int


NUM_AIC = 24


def _decodes(batch: int) -> AttnWork:
    lengths = np.random.default_rng(SEED).integers(1, 8193, batch)
    return AttnWork(np.ones(batch), lengths, 32, 8, 128, mask_mode=3)


def planning_cases() -> list[PlanningCase]:
    """Return the batches, lengths drawn from one seed."""
    prefill = AttnWork(np.array([32768]), np.array([32768]), 32, 8, 128, mask_mode=3)
    return [
        PlanningCase("decode_256", "256 decodes of 1..8k, Nkv 8, g 4", _decodes(256), 64, 256, 0.3),
        PlanningCase(
            "decode_4096", "4096 decodes of 1..8k, Nkv 8, g 4", _decodes(4096), 64, 256, 2.0
        ),
        PlanningCase(
            "prefill_8192", "8192 row blocks: 1 x 32k, Nkv 8, g 4", prefill, 128, 128, 3.0
        ),
    ]


def measure(case: PlanningCase, rounds: int) -> dict[str, PlanningTime]:
    """Plan with both planners in turns."""

    def plan(planner: str) -> Plan:
        return make_plan(
            planner,
            case.work,
            num_aic=NUM_AIC,
            num_aiv=2 * NUM_AIC,
            block_q=case.block_q,
            block_kv=case.block_kv,
        )

    plans = {planner: plan(planner) for planner in PLANNERS}
    plan_ms: dict[str, list[float]] = {planner: [] for planner in PLANNERS}
    for _ in range(rounds):
        for planner in PLANNERS:
            plan_ms[planner].append(_milliseconds(partial(plan, planner)))
    return {
        planner: PlanningTime(
            median_ms=statistics.median(plan_ms[planner]),
            best_ms=min(plan_ms[planner]),
            encode_ms=statistics.median(
                _milliseconds(partial(encode, plans[planner])) for _ in range(rounds)
            ),
            rounds=rounds,
        )
        for planner in PLANNERS
    }


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)
