"""Other planners, written from what is published about them, on our costs."""

from __future__ import annotations

from collections.abc import Callable

from perf.planner_peers.fa3 import fa3
from perf.planner_peers.flashinfer import flashinfer
from perf.planner_peers.grids import fixed_split, row_grid
from perf.planner_peers.items import Problem

PEERS: dict[str, Callable[[Problem], int]] = {
    "row_grid": row_grid,
    "fixed_8_split": fixed_split,
    "flashinfer": flashinfer,
    "fa3": fa3,
}

__all__ = ["PEERS", "Problem"]
