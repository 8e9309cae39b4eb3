"""Plans from bounds: how even they are for the lengths that the device then finds (counted)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fa_triton.planner import AttnWork, make_plan
from fa_triton.planner.schedule import Plan
from fa_triton.planner.statistics import plan_cost

SEED = 0
BOUND = 32768
NUM_AIC = 24
BATCHES = (4, 16, 64, 256)
# what the planner knew: the lengths, or their bound, and whether it knew that it was one
KNOWN_LENGTHS, BOUNDS, TAKEN_FOR_LENGTHS = "lengths", "bounds", "bounds_taken_for_lengths"


def _actual_lengths(batch: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(SEED)
    return {
        "all as long as the bound": np.full(batch, BOUND),
        "uniform below the bound": generator.integers(1, BOUND + 1, batch),
        "log-normal, median an eighth": np.clip(
            generator.lognormal(0, 1, batch) * BOUND / 8, 1, BOUND
        ).astype(np.int64),
    }


def _plan(lengths: np.ndarray, *, from_bounds: bool = False) -> Plan:
    work = AttnWork(np.ones(lengths.size), lengths, 32, 8, 128, mask_mode=3)
    return make_plan(
        "balanced",
        work,
        num_aic=NUM_AIC,
        num_aiv=2 * NUM_AIC,
        block_q=64,
        block_kv=256,
        from_bounds=from_bounds,
    )


def bounds_makespans() -> list[dict[str, Any]]:
    """Makespan over ideal of the actual lengths, by what the planner knew."""
    lines = []
    for batch in BATCHES:
        for spread, lengths in _actual_lengths(batch).items():
            known = _plan(lengths)
            bound = np.full(batch, BOUND)
            costs = {
                KNOWN_LENGTHS: plan_cost(known),
                BOUNDS: plan_cost(_plan(bound, from_bounds=True), known.work),
                TAKEN_FOR_LENGTHS: plan_cost(_plan(bound), known.work),
            }
            lines += [
                {
                    "kind": "bounds",
                    "title": f"{batch} decodes, bound 32k: {spread}",
                    "cores": NUM_AIC,
                    "planned_from": knowledge,
                    "ratio": round(cost.ratio, 6),
                }
                for knowledge, cost in costs.items()
            ]
    return lines
