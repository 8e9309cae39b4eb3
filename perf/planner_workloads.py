"""Named batches for the planners, shared by the benchmark and the tests."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_triton.planner import AttnWork, Plan, make_plan

_DATA = Path(__file__).with_suffix(".json")
CORE_COUNTS = (36, 24, 20)


@dataclass(frozen=True)
class PlannerWorkload:
    """One batch with its plan blocks.

    Attributes:
        name: As in results and plots.
        title: In words.
        work: The batch.
        block_q: Rows of a row block.
        block_kv: Keys of a key block.
        total_block_cost: Units of all blocks.
        goals: Makespan over ideal that ``balanced`` shall reach, by cube cores.
    """

    name: str
    title: str
    work: AttnWork
    block_q: int
    block_kv: int
    total_block_cost: int
    goals: dict[int, float]

    def plan(self, planner: str, num_aic: int) -> Plan:
        """Plan it for so many cube cores, two vector cores each."""
        return make_plan(
            planner,
            self.work,
            num_aic=num_aic,
            num_aiv=2 * num_aic,
            block_q=self.block_q,
            block_kv=self.block_kv,
        )


@functools.cache
def planner_workloads() -> dict[str, PlannerWorkload]:
    """Return all workloads by name."""
    entries = json.loads(_DATA.read_text())["workloads"]
    return {entry["name"]: _workload(entry) for entry in entries}


def _workload(entry: dict[str, Any]) -> PlannerWorkload:
    windowed = entry["mask"] == "window"
    work = AttnWork(
        q_lens=entry["q_lens"],
        kv_lens=entry["kv_lens"],
        num_heads_q=entry["num_heads_kv"] * entry["group"],
        num_heads_kv=entry["num_heads_kv"],
        head_dim=entry["head_dim"],
        mask_mode=4 if windowed else 3,
        win_left=entry["window"] - 1 if windowed else -1,
        win_right=0 if windowed else -1,
    )
    block_q, block_kv = entry["tile"]
    return PlannerWorkload(
        name=entry["name"],
        title=entry["title"],
        work=work,
        block_q=block_q,
        block_kv=block_kv,
        total_block_cost=entry["total_block_cost"],
        goals={int(cores): goal for cores, goal in entry["goal"].items()},
    )
