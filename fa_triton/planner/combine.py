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
    """Row blocks that several cores share, in the order of their slots; int64 ``[K]`` each."""

    bn: np.ndarray
    m: np.ndarray
    first_slot: np.ndarray
    slots: np.ndarray
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
    if split.bn.size == 0:
        none = np.zeros((0, TASK_WORDS), dtype=np.int64)
        return CombineSchedule(none, np.zeros((num_aiv, 2), dtype=np.int64), 0)
    parts = [(0, columns)]
    if split.rows.sum() < MANY_ROWS * num_aiv and columns % (2 * COLUMN_STEP) == 0:
        half = columns // 2
        parts = [(0, half), (half, half)]
    return _deal(split, num_aiv, parts)


def _deal(split: SplitRows, num_aiv: int, parts: list[tuple[int, int]]) -> CombineSchedule:
    """Deal rows x column parts; inside a row block all rows of one part follow each other."""
    part_first = np.array([first for first, _ in parts])
    part_columns = np.array([count for _, count in parts])
    # runs: one column part of one row block
    run_rows = np.repeat(split.rows, len(parts))
    run_slots = np.repeat(split.slots, len(parts))
    run_part = np.tile(np.arange(len(parts)), split.rows.size)
    unit_cycles = np.array([partial_cycles(1, count) for count in part_columns.tolist()])
    run_cycles = run_slots * unit_cycles[run_part]

    run = np.repeat(np.arange(run_rows.size), run_rows)
    run_start = np.cumsum(run_rows) - run_rows
    cycles = run_cycles[run]
    ends = np.cumsum(cycles)
    # the core in whose share the middle of a unit falls
    core = (2 * ends - cycles) * num_aiv // (2 * ends[-1])
    makespan = int(np.bincount(core, cycles, num_aiv).max())

    begin = np.flatnonzero(np.append(True, (run[1:] != run[:-1]) | (core[1:] != core[:-1])))
    count = np.diff(np.append(begin, run.size))
    task_run = run[begin]
    block = task_run // len(parts)
    tasks = np.stack(
        [
            split.bn[block],
            split.m[block],
            split.first_slot[block],
            split.slots[block],
            begin - run_start[task_run],
            count,
            part_first[run_part[task_run]],
            part_columns[run_part[task_run]],
        ],
        axis=1,
    )
    per_core = np.bincount(core[begin], minlength=num_aiv)
    ranges = np.stack([np.cumsum(per_core) - per_core, per_core], axis=1)
    return CombineSchedule(tasks, ranges, makespan)
