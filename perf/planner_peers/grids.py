"""Peers that do not look at the lengths: one program per row block, or eight of them."""

from __future__ import annotations

import numpy as np

from perf.planner_peers.items import Problem, cut_into_chunks, makespan, round_robin

SPLITS = 8


def row_grid(problem: Problem) -> int:
    """Makespan of whole row blocks, dealt round robin."""
    low, high = problem.visible
    return makespan(cut_into_chunks(problem, low, np.maximum(high - low, 1)), round_robin)


def fixed_split(problem: Problem) -> int:
    """Makespan of row blocks cut into eight equal runs of key blocks, dealt round robin."""
    blocks = np.maximum(-(-problem.grid.blocks // SPLITS), 1)
    low, _ = problem.visible
    return makespan(cut_into_chunks(problem, low, blocks * problem.block_kv), round_robin)
