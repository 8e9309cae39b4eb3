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
from fa_triton.planner.row_grid import (
    GROUP_OUTER,
    ONE_HEAD,
    POSITION_OUTER,
    RowGrid,
    build_row_grid,
)
from fa_triton.planner.schedule import BALANCED, Plan
from fa_triton.planner.work import AttnWork


@dataclass(frozen=True, eq=False)
class PlanCost:
    """Cycles of a plan.

    Attributes:
        segment_cycles: ``[sections*num_aic]`` blocks and partial rows of every segment.
        core_cycles: ``[sections, cores]`` the same per core: a core has one segment per section;
            or those that come to it when the core that is free first takes the next one.
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


def plan_cost(plan: Plan, actual: AttnWork | None = None) -> PlanCost:
    """Cost every core and every combine task of a plan.

    Args:
        plan: The plan.
        actual: The batch as the device finds it, with lengths of at most the planned ones; None:
            with the planned ones.

    Returns:
        The cycles; its ideal is that of the actual lengths.
    """
    grid = plan.grid if actual is None else _grid_of(plan, actual)
    busy = (plan.starts != plan.ends).any(axis=1)
    head_cut = busy & _is_inside(plan, plan.starts)
    tail_cut = busy & _is_inside(plan, plan.ends)
    start = _coordinates(grid, plan.starts, head_cut)
    end = _coordinates(grid, plan.ends, tail_cut)
    cycles = np.maximum(end - start, 0) * CYCLES_PER_UNIT
    if plan.is_fd:
        one_row = (plan.starts[:, :2] == plan.ends[:, :2]).all(axis=1)
        writes = [
            cut * partial_cycles(_rows_at(grid, positions), plan.work.columns)
            for cut, positions in (
                (head_cut, plan.starts),
                (tail_cut & ~(head_cut & one_row), plan.ends),
            )
        ]
        cycles = cycles + writes[0] + writes[1]
    cores = plan.shared_cores or plan.num_aic
    core = _in_turn(cycles, cores) if plan.shared_cores else cycles
    sections_wait = plan.planner != BALANCED
    barriers = SECTION_BARRIERS * plan.num_sections if sections_wait else 1
    return PlanCost(
        segment_cycles=cycles,
        core_cycles=core.reshape(-1, cores),
        vector_cycles=_vector_cycles(plan, grid).reshape(-1, plan.num_aiv),
        sections_wait=sections_wait,
        barrier_cycles=barriers * BARRIER_CYCLES if plan.is_fd else 0,
        total_cycles=int(grid.cost.sum()) * grid.heads * CYCLES_PER_UNIT,
        num_cores=cores,
    )


def _grid_of(plan: Plan, actual: AttnWork) -> RowGrid:
    """Row blocks of the actual lengths, cut as those of the plan."""
    order = ONE_HEAD if plan.one_head_rows else POSITION_OUTER
    if plan.planner != BALANCED and actual.layout_q == "BNSD":
        order = GROUP_OUTER
    return build_row_grid(actual, plan.block_q, plan.block_kv, order)


def _in_turn(cycles: np.ndarray, cores: int) -> np.ndarray:
    """Load of every core when segments start in order, each on the core that is free first."""
    loads = [0] * cores
    for segment in cycles.tolist():
        heapq.heapreplace(loads, loads[0] + segment)
    return np.array(loads, dtype=np.int64)


def _row_of(grid: RowGrid, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sequence and flattened row block of positions, and whether there is such a row block.

    A row block behind the last one of a head counts as the first of the next.
    """
    seq = np.minimum(positions[:, 0] // grid.heads, grid.batch_size)
    stops = np.append(grid.offsets[1:], grid.offsets[-1])[seq]
    row = np.minimum(grid.offsets[seq] + positions[:, 1], stops)
    return seq, row, row < stops


def _is_inside(plan: Plan, positions: np.ndarray) -> np.ndarray:
    """Whether positions cut a row block, and not only lie at the first key block it sees."""
    _, row, exists = _row_of(plan.grid, positions)
    return exists & (positions[:, 2] > np.append(plan.grid.first, 0)[row])


def _coordinates(grid: RowGrid, positions: np.ndarray, is_inside: np.ndarray) -> np.ndarray:
    """Units before positions; those not inside a row block lie before it."""
    row_sums = grid.cost_offsets()
    head_units = np.diff(row_sums[grid.offsets])
    seq_sums = np.append(0, np.cumsum(head_units * grid.heads))
    seq, row, exists = _row_of(grid, positions)
    head = positions[:, 0] - seq * grid.heads
    first, norm, cost = (np.append(v, 0)[row] for v in (grid.first, grid.norm, grid.cost))
    in_row = np.clip((positions[:, 2] - first) * norm, 0, cost) * (exists & is_inside)
    in_head = row_sums[row] - row_sums[grid.offsets[seq]]
    return seq_sums[seq] + head * np.append(head_units, 0)[seq] + in_head + in_row


def _rows_at(grid: RowGrid, positions: np.ndarray) -> np.ndarray:
    """Rows of the row block at each position, 0 where there is none."""
    _, row, exists = _row_of(grid, positions)
    return np.append(grid.rows, 0)[row] * exists


def _vector_cycles(plan: Plan, grid: RowGrid) -> np.ndarray:
    """Cycles every vector core spends on its combine tasks."""
    rows = np.clip(_rows_at(grid, plan.tasks[:, 0:2]) - plan.tasks[:, 4], 0, plan.tasks[:, 5])
    if plan.planner != BALANCED:
        rows = -(-rows // SECTION_TASK_ROWS) * SECTION_TASK_ROWS
    row_cycles = [partial_cycles(1, count) for count in plan.tasks[:, 7].tolist()]
    cycles = plan.tasks[:, 3] * rows * np.array(row_cycles, dtype=np.int64)
    vector = np.repeat(np.arange(len(plan.task_ranges)), plan.task_ranges[:, 1])
    totals = np.zeros(len(plan.task_ranges), dtype=np.int64)
    np.add.at(totals, vector, cycles)
    return totals
