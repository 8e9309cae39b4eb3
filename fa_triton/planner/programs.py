"""Plans of many programs: a device takes the next one whenever a core is free.

A segment of such a plan is a program, not a core. It is one part of a row block that is cut, or a
run of whole row blocks, in the order of the line. Who computes what is decided while it runs, so
these plans stay even where the planner does not know, or must not look at, what a core will get.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.assemble import Ranges, assemble
from fa_triton.planner.row_grid import RowGrid
from fa_triton.planner.schedule import Plan
from fa_triton.planner.work import AttnWork

# programs of one launch
MAX_PROGRAMS = 65535


@dataclass(frozen=True, eq=False)
class RowParts:
    """How the row blocks of the grid are cut, the same for all heads.

    Attributes:
        parts: ``[R]`` parts of each, 1 where it stays whole.
        cuts: ``[sum(parts)]`` key blocks of the row block before each part; 0 before the first.
        runs: Runs that whole row blocks would come in if nothing were cut.
    """

    parts: np.ndarray
    cuts: np.ndarray
    runs: int


def part_index(parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row block and number of every part of row blocks with so many ``parts``."""
    row = np.arange(parts.size).repeat(parts)
    return row, np.arange(row.size) - (parts.cumsum() - parts)[row]


def plan_programs(
    work: AttnWork,
    grid: RowGrid,
    row_parts: RowParts,
    *,
    num_aic: int,
    num_aiv: int,
    block_q: int,
    block_kv: int,
    one_head_rows: bool,
    batch_invariant: bool,
) -> Plan:
    """Write parts and runs down as a plan whose ``num_aic`` is the number of programs.

    Args:
        work: What is planned.
        grid: Its row blocks.
        row_parts: How they are cut.
        num_aic: Cube cores.
        num_aiv: Vector cores.
        block_q: Rows of a row block.
        block_kv: Keys of a key block.
        one_head_rows: Whether rows belong to one query head.
        batch_invariant: Whether the cuts of a sequence depend on nothing but the sequence.

    Raises:
        ValueError: The batch needs more programs than one launch has.
    """
    seq, head, row = _line_of_rows(grid)
    parts = row_parts.parts[row]
    begin = _begins_program(grid.cost[row], parts, row_parts.runs).nonzero()[0]

    # one cut at the start of every run and of every part, and the end of the line
    parts = parts[begin]
    run, part = part_index(parts)
    index = begin[run]
    programs = index.size
    if programs > MAX_PROGRAMS:
        raise ValueError(
            f"`q_lens` and `kv_lens` must need at most {MAX_PROGRAMS} programs, got {programs} for "
            f"a batch of {work.batch_size}; split the batch"
        )
    first_part = row_parts.parts.cumsum() - row_parts.parts
    cuts = np.empty((programs + 1, 4), dtype=np.int64)
    cuts[:-1, 0], cuts[:-1, 1], cuts[:-1, 2] = seq[index], head[index], row[index]
    cuts[:-1, 3] = row_parts.cuts[first_part[row[index]] + part]
    cuts[-1] = (grid.batch_size, 0, grid.offsets[-1], 0)

    ranges = Ranges.along(cuts, grid, num_aiv, work.columns)
    return assemble(
        work,
        grid,
        ranges,
        num_aic=max(programs, 1),
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
        batch_invariant=batch_invariant,
        shared_cores=num_aic,
    )


def _line_of_rows(grid: RowGrid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sequence, head and row block of the grid of every row block along the line."""
    unit_rows = np.diff(grid.offsets).repeat(grid.heads)
    unit, in_unit = part_index(unit_rows)
    seq, head = np.divmod(unit, grid.heads)
    return seq, head, grid.offsets[seq] + in_unit


def _begins_program(cost: np.ndarray, parts: np.ndarray, runs: int) -> np.ndarray:
    """Whether a program starts at each row block of the line.

    Row blocks that are cut or cost half a run stand alone.
    """
    total = int(cost.sum())
    alone = (parts > 1) | (2 * cost * runs >= max(total, 1))
    begins = alone.copy()
    if cost.any():
        # the run in which the middle of a row block falls
        ends = np.where(alone, 0, cost).cumsum()
        run = (2 * ends - cost) * runs // (2 * total)
        begins[1:] |= run[1:] != run[:-1]
    begins[1:] |= alone[:-1]
    begins[:1] = True
    return begins
