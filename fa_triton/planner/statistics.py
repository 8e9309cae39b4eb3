"""How long a plan takes by the assumptions of :mod:`fa_triton.planner.cost`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from fa_triton.planner.cost import (
    BARRIER_CYCLES,
    CYCLES_PER_UNIT,
    SECTION_BARRIERS,
    SECTION_TASK_ROWS,
    partial_cycles,
)
from fa_triton.planner.row_grid import RowGrid
from fa_triton.planner.schedule import BALANCED, Plan


@dataclass(frozen=True, eq=False)
class PlanCost:
    """Cycles of a plan.

    Attributes:
        segment_cycles: ``[sections*num_aic]`` blocks and partial rows of every segment.
        core_cycles: ``[sections, cores]`` the same per core: a core has one segment per section;
            batch-invariant: as many as come to it when the next free core takes the next one.
        vector_cycles: ``[sections, num_aiv]`` combine tasks of every vector core; balanced: one
            line for all sections.
        sections_wait: Whether a section starts when all cores have ended the one before.
        barrier_cycles: All barriers.
        total_cycles: All blocks, without any cost of splitting.
        num_cores: Cube cores.
    """

    segment_cycles: np.ndarray
    core_cycles: np.ndarray
    vector_cycles: np.ndarray
    sections_wait: bool
    barrier_cycles: int
    total_cycles: int
    num_cores: int

    @property
    def attention(self) -> int:
        """Slowest core; summed over the sections where they wait for each other."""
        if self.sections_wait:
            return int(self.core_cycles.max(axis=1).sum())
        return int(self.core_cycles.sum(axis=0).max())

    @property
    def combine(self) -> int:
        """Slowest vector core of every section."""
        return int(self.vector_cycles.max(axis=1).sum())

    @property
    def makespan(self) -> int:
        """Attention, combine and the barriers between them."""
        return self.attention + self.combine + self.barrier_cycles

    @property
    def ideal(self) -> float:
        """Cycles if the blocks were spread evenly and splitting were free."""
        return self.total_cycles / self.num_cores

    @property
    def ratio(self) -> float:
        """Makespan over ideal; 1.0 where there is nothing to do."""
        return self.makespan / self.ideal if self.total_cycles else 1.0


def plan_cost(plan: Plan) -> PlanCost:
    """Cost every core and every combine task of a plan."""
    grid = plan.grid
    start, end = _coordinates(grid, plan.starts), _coordinates(grid, plan.ends)
    cycles = np.maximum(end - start, 0) * CYCLES_PER_UNIT
    if plan.is_fd:
        cycles = cycles + _partial_writes(plan)
    cores = plan.num_aic if plan.invariant_cores is None else plan.invariant_cores
    core = cycles if plan.invariant_cores is None else _in_turn(cycles, cores)
    sections_wait = plan.planner != BALANCED
    barriers = SECTION_BARRIERS * plan.num_sections if sections_wait else 1
    seq_units = np.diff(grid.cost_offsets()[grid.offsets])
    return PlanCost(
        segment_cycles=cycles,
        core_cycles=core.reshape(-1, cores),
        vector_cycles=_vector_cycles(plan).reshape(-1, plan.num_aiv),
        sections_wait=sections_wait,
        barrier_cycles=barriers * BARRIER_CYCLES if plan.is_fd else 0,
        total_cycles=int(seq_units.sum()) * grid.heads * CYCLES_PER_UNIT,
        num_cores=cores,
    )


def _in_turn(cycles: np.ndarray, cores: int) -> np.ndarray:
    """Load of every core when segments start in order, each on the core that is free first."""
    loads = [0] * cores
    for segment in cycles.tolist():
        heapq.heapreplace(loads, loads[0] + segment)
    return np.array(loads, dtype=np.int64)


def _row_of(grid: RowGrid, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sequence and flattened row block of positions; the end of the line has its own row."""
    seq = np.minimum(positions[:, 0] // grid.heads, grid.batch_size)
    return seq, np.minimum(grid.offsets[seq] + positions[:, 1], grid.offsets[-1])


def _coordinates(grid: RowGrid, positions: np.ndarray) -> np.ndarray:
    """Units before a position."""
    row_sums = grid.cost_offsets()
    head_units = np.diff(row_sums[grid.offsets])
    seq_sums = np.append(0, np.cumsum(head_units * grid.heads))
    seq, row = _row_of(grid, positions)
    head = positions[:, 0] - seq * grid.heads
    first, norm = np.append(grid.first, 0)[row], np.append(grid.norm, 0)[row]
    in_row = np.maximum(positions[:, 2] - first, 0) * norm
    in_head = row_sums[row] - row_sums[grid.offsets[seq]]
    return seq_sums[seq] + head * np.append(head_units, 0)[seq] + in_head + in_row


def _partial_writes(plan: Plan) -> np.ndarray:
    """Cycles every core spends on writing partial rows."""
    grid = plan.grid
    _, start_row = _row_of(grid, plan.starts)
    _, end_row = _row_of(grid, plan.ends)
    first = np.append(grid.first, 0)
    rows = np.append(grid.rows, 0)
    busy = (plan.starts != plan.ends).any(axis=1)
    head_cut = busy & (plan.starts[:, 2] > first[start_row])
    tail_cut = busy & (plan.ends[:, 2] > first[end_row])
    one_row = (plan.starts[:, :2] == plan.ends[:, :2]).all(axis=1)
    cycles = partial_cycles(rows, plan.work.columns)
    return head_cut * cycles[start_row] + (tail_cut & ~(head_cut & one_row)) * cycles[end_row]


def _vector_cycles(plan: Plan) -> np.ndarray:
    """Cycles every vector core spends on its combine tasks."""
    rows, columns = plan.tasks[:, 5], plan.tasks[:, 7]
    if plan.planner != BALANCED:
        rows = -(-rows // SECTION_TASK_ROWS) * SECTION_TASK_ROWS
    row_cycles = [partial_cycles(1, count) for count in columns.tolist()]
    cycles = plan.tasks[:, 3] * rows * np.array(row_cycles, dtype=np.int64)
    vector = np.repeat(np.arange(len(plan.task_ranges)), plan.task_ranges[:, 1])
    totals = np.zeros(len(plan.task_ranges), dtype=np.int64)
    np.add.at(totals, vector, cycles)
    return totals
