"""Combine tasks of the balanced planner: split rows dealt out over the vector cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.cost import partial_cycles
from fa_triton.planner.schedule import TASK_WORDS

# rows are halved where both halves keep whole groups of so many columns
COLUMN_STEP = 8
# with so many rows per vector core halves would not even the load out any more
MANY_ROWS = 16


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Row blocks that several cores share, in the order of their slots.

    Attributes:
        places: ``[K, 4]`` bn, m, first slot, slots; int64.
        rows: ``[K]`` rows of the row block.
    """

    places: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class CombineSchedule:
    """Tasks ``[T, 8]`` in core order, ``[aiv, 2]`` first task and count, cycles of the slowest."""

    tasks: np.ndarray
    ranges: np.ndarray
    makespan: int


def schedule_combine(split: SplitRows, num_aiv: int, columns: int) -> CombineSchedule:
    """Deal the rows of all split row blocks out over the vector cores.

    The unit of work is one row, or half a row where there are few. Units stay in
    slot order, so that a vector core reads neighbouring slots; neighbouring rows of one row block
    on one core become one task.

    Args:
        split: The split row blocks.
        num_aiv: Vector cores.
        columns: Columns of an output row.

    Returns:
        The schedule.
    """
    if split.rows.size == 0:
        none = np.zeros((0, TASK_WORDS), dtype=np.int64)
        return CombineSchedule(none, np.zeros((num_aiv, 2), dtype=np.int64), 0)
    parts = 1
    if split.rows.sum() < MANY_ROWS * num_aiv and columns % (2 * COLUMN_STEP) == 0:
        parts = 2
    return _deal(split, num_aiv, parts, columns // parts)


def _deal(split: SplitRows, num_aiv: int, parts: int, columns: int) -> CombineSchedule:
    """Deal units of one row x ``columns``; inside a row block all rows of one part are together."""
    block_units = split.rows * parts
    block = np.repeat(np.arange(split.rows.size), block_units)
    unit = np.arange(block.size) - (np.cumsum(block_units) - block_units)[block]
    part, row = np.divmod(unit, split.rows[block])

    cycles = (split.places[:, 3] * partial_cycles(1, columns))[block]
    ends = np.cumsum(cycles)
    # the core in whose share the middle of a unit falls
    core = (2 * ends - cycles) * num_aiv // (2 * ends[-1])
    makespan = int(np.bincount(core, cycles).max())

    begins = row == 0
    begins[1:] |= core[1:] != core[:-1]
    begin = np.flatnonzero(begins)
    tasks = np.empty((begin.size, TASK_WORDS), dtype=np.int64)
    tasks[:, 0:4] = split.places[block[begin]]
    tasks[:, 4] = row[begin]
    tasks[:-1, 5] = begin[1:] - begin[:-1]
    tasks[-1, 5] = block.size - begin[-1]
    tasks[:, 6] = part[begin] * columns
    tasks[:, 7] = columns
    ranges = np.empty((num_aiv, 2), dtype=np.int64)
    ranges[:, 1] = np.bincount(core[begin], minlength=num_aiv)
    ranges[:, 0] = np.cumsum(ranges[:, 1]) - ranges[:, 1]
    return CombineSchedule(tasks, ranges, makespan)
