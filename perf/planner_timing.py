"""How long planning takes on this CPU: batches as a serving engine plans them at every step."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from fa_triton.planner import PLANNERS, AttnWork, make_plan
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
    """Milliseconds; ``encode_ms`` is the median of writing the table, not part of the others."""

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
    plan_s: dict[str, list[float]] = {planner: [] for planner in PLANNERS}
    encode_s: dict[str, list[float]] = {planner: [] for planner in PLANNERS}
    warm_up = max(rounds // 10, 1)
    for _ in range(warm_up + rounds):
        for planner in PLANNERS:
            start = time.perf_counter()
            plan = make_plan(
                planner,
                case.work,
                num_aic=NUM_AIC,
                num_aiv=2 * NUM_AIC,
                block_q=case.block_q,
                block_kv=case.block_kv,
            )
            planned = time.perf_counter()
            encode(plan)
            plan_s[planner].append(planned - start)
            encode_s[planner].append(time.perf_counter() - planned)
    return {
        planner: PlanningTime(
            median_ms=1e3 * statistics.median(plan_s[planner][warm_up:]),
            best_ms=1e3 * min(plan_s[planner][warm_up:]),
            encode_ms=1e3 * statistics.median(encode_s[planner][warm_up:]),
            rounds=rounds,
        )
        for planner in PLANNERS
    }
