"""Plans from upper bounds: the device knows the lengths, the planner does not.

Ranges that are even by the bounds are not even by the lengths: a core whose sequences turn out to
be short waits for one whose sequences do not. So the line is cut into many programs of about one
cost, and the cores take them in turn: whole row blocks where there are enough of them, else equal
parts of row blocks. A program behind the actual end of its keys or rows is over at once.
"""

from __future__ import annotations

import numpy as np

from fa_triton.planner.cost import CYCLES_PER_UNIT, partial_cycles
from fa_triton.planner.programs import MAX_PROGRAMS, RowParts, part_index, plan_programs
from fa_triton.planner.row_grid import ONE_HEAD, POSITION_OUTER, RowGrid, build_row_grid
from fa_triton.planner.schedule import Plan, check_block_sizes, check_core_counts
from fa_triton.planner.work import AttnWork

# programs per core: the last one of a core is this share of its work
PROGRAMS_PER_CORE = 32
# a part takes so many times the cycles of writing and reading its partial rows at least
LEAST_WORK_PER_PARTIAL = 50


def plan(
    work: AttnWork,
    *,
    num_aic: int,
    num_aiv: int,
    block_q: int,
    block_kv: int,
    one_head_rows: bool = False,
) -> Plan:
    """Plan a batch whose lengths are upper bounds of what the device will find.

    Args:
        work: Bounds of the lengths, heads and mask.
        num_aic: Cube cores.
        num_aiv: Vector cores.
        block_q: Rows of a row block.
        block_kv: Keys of a key block.
        one_head_rows: Rows of one query head instead of merged ones.

    Returns:
        A balanced plan of one section whose ``num_aic`` is the number of programs.

    Raises:
        ValueError: Core counts or block sizes are not usable.
    """
    check_core_counts(num_aic, num_aiv)
    check_block_sizes(block_q, block_kv)
    grid = build_row_grid(work, block_q, block_kv, ONE_HEAD if one_head_rows else POSITION_OUTER)
    programs = min(PROGRAMS_PER_CORE * num_aic, MAX_PROGRAMS // 2)
    return plan_programs(
        work,
        grid,
        _row_parts(grid, programs, work.columns),
        num_aic=num_aic,
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
        batch_invariant=False,
    )


def _row_parts(grid: RowGrid, programs: int, columns: int) -> RowParts:
    """Cut row blocks that cost more than a share into equal parts of about a share."""
    share = max(int(grid.cost.sum()) * grid.heads / programs, 1)
    parts = np.rint(grid.cost / share).astype(np.int64)
    partial = 2 * partial_cycles(grid.rows, columns) * LEAST_WORK_PER_PARTIAL
    least_blocks = np.maximum(-(-partial // (grid.norm * CYCLES_PER_UNIT)), 1)
    parts = np.clip(parts, 1, np.maximum(grid.blocks // least_blocks, 1))
    row, part = part_index(parts)
    return RowParts(parts, part * grid.blocks[row] // parts[row], programs)
