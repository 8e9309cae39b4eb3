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
    """Deal units of one row x ``columns``.

    A row block is ``parts`` strips of them, each of all its rows.
    """
    rows, slots = split.rows, split.places[:, 3]
    if parts > 1:
        rows, slots = rows.repeat(parts), slots.repeat(parts)
    strip_ends = rows.cumsum()
    # where each unit ends
    cycles = (slots * partial_cycles(1, columns)).repeat(rows)
    ends = cycles.cumsum()
    total = int(ends[-1])
    # the core in whose share the middle of a unit falls
    core = (2 * ends - cycles) * num_aiv // (2 * total)

    begins = np.zeros(core.size, dtype=bool)
    begins[strip_ends - rows] = True
    begins[1:] |= core[1:] != core[:-1]
    begin = begins.nonzero()[0]
    core = core[begin]
    strip = strip_ends.searchsorted(begin, side="right")
    block, part = np.divmod(strip, parts)
    tasks = np.empty((begin.size, TASK_WORDS), dtype=np.int64)
    tasks[:, 0:4] = split.places[block]
    tasks[:, 4] = begin - (strip_ends - rows)[strip]
    tasks[:-1, 5] = begin[1:] - begin[:-1]
    tasks[-1, 5] = cycles.size - begin[-1]
    tasks[:, 6] = part * columns
    tasks[:, 7] = columns
    # the first task of every core, and one more for the end
    firsts = core.searchsorted(np.arange(num_aiv + 1))
    ranges = np.empty((num_aiv, 2), dtype=np.int64)
    ranges[:, 0] = firsts[:-1]
    ranges[:, 1] = firsts[1:] - firsts[:-1]
    before = np.append(ends[begin] - cycles[begin], total)[firsts]
    return CombineSchedule(tasks, ranges, int((before[1:] - before[:-1]).max()))
