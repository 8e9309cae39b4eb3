"""Batch-invariant plans: how a sequence is cut depends on nothing but the sequence.

Sums over keys round differently when they are cut elsewhere, so results that must be the same in
every batch need the same cuts in every batch. A head with few rows is cut at absolute multiples of
:data:`INVARIANT_KEYS`, counted from key 0, one program per part; every other row block is whole.
Whole row blocks come in runs that cost about the share of a core.
"""

from __future__ import annotations

import numpy as np

from fa_triton.planner.programs import RowParts, part_index, plan_programs
from fa_triton.planner.row_grid import ONE_HEAD, POSITION_OUTER, RowGrid, build_row_grid
from fa_triton.planner.schedule import Plan, check_block_sizes, check_core_counts
from fa_triton.planner.work import AttnWork

# Keys of a part, rounded up to whole key blocks: a decode of 8 rows (D 128, 16 bit) then reads
# 1 MiB of keys and values per 4 KiB of partial rows.
INVARIANT_KEYS = 2048
# rows of a head that is cut; one with more rows has enough row blocks to spread
INVARIANT_SPLIT_ROWS = 64
# rows and keys of a block where the caller names none
INVARIANT_BLOCK = 128


def plan(
    work: AttnWork,
    *,
    num_aic: int,
    num_aiv: int,
    block_q: int | None = None,
    block_kv: int | None = None,
    one_head_rows: bool = False,
) -> Plan:
    """Plan a batch so that no sequence is cut otherwise than alone.

    Args:
        work: Lengths, heads and mask.
        num_aic: Cube cores; they set the length of runs of whole row blocks and nothing else.
        num_aiv: Vector cores.
        block_q: Rows of a row block, which must not depend on the batch; None: a fixed size.
        block_kv: Keys of a key block, likewise.
        one_head_rows: Rows of one query head; only where no heads share a key head.

    Returns:
        A balanced plan of one section whose ``num_aic`` is the number of programs.

    Raises:
        ValueError: An argument is not usable, or the batch needs more programs than one launch
            has.
    """
    check_core_counts(num_aic, num_aiv)
    check_block_sizes(block_q, block_kv)
    block_q, block_kv = block_q or INVARIANT_BLOCK, block_kv or INVARIANT_BLOCK
    if one_head_rows and work.group > 1:
        raise ValueError(
            "`one_head_rows` must be False for a batch-invariant plan of merged heads, "
            f"got True with {work.group} query heads per key head"
        )
    grid = build_row_grid(work, block_q, block_kv, ONE_HEAD if one_head_rows else POSITION_OUTER)
    return plan_programs(
        work,
        grid,
        _row_parts(work, grid, -(-INVARIANT_KEYS // block_kv), runs=num_aic),
        num_aic=num_aic,
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
        batch_invariant=True,
    )


def _row_parts(work: AttnWork, grid: RowGrid, part_blocks: int, runs: int) -> RowParts:
    """Cut heads of few rows at multiples of ``part_blocks``.

    Parts in front of a left window are left out.
    """
    merged = work.num_heads_q // grid.heads
    few_rows = (work.q_lens * merged <= INVARIANT_SPLIT_ROWS).repeat(np.diff(grid.offsets))
    before = grid.first // part_blocks
    last = grid.first + np.maximum(grid.blocks - 1, 0)
    parts = np.where(few_rows, last // part_blocks - before + 1, 1)
    row, part = part_index(parts)
    cuts = np.maximum((before[row] + part) * part_blocks - grid.first[row], 0)
    return RowParts(parts, cuts, runs)
