"""Batch-invariant plans: how a sequence is cut depends on nothing but the sequence.

Sums over keys round differently when they are cut elsewhere, so results that must be the same in
every batch need the same cuts in every batch. A head with few rows is cut at absolute multiples of
:data:`INVARIANT_KEYS`, counted from key 0, one segment per part; every other row block is whole.
Segments are programs here, not cores: there are as many as the batch needs, in the order of the
line, and the device takes the next one when a core is free. Whole row blocks come in runs that
cost about the share of a core.
"""

from __future__ import annotations

import numpy as np

from fa_triton.planner.assemble import Ranges, assemble
from fa_triton.planner.combine import SplitRows, schedule_combine
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
# programs of one launch
MAX_SEGMENTS = 65535


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
        A balanced plan of one section whose ``num_aic`` is the number of segments.

    Raises:
        ValueError: An argument is not usable, or the batch needs more segments than one launch
            has programs.
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
    part_blocks = -(-INVARIANT_KEYS // block_kv)
    seq, head, row, parts = _line_of_rows(grid, _parts(work, grid, part_blocks))
    begin = np.flatnonzero(_begins_segment(grid.cost[row], parts, num_aic))

    # one cut at the start of every run, one at the start of every part, and the end of the line
    parts = parts[begin]
    index = np.repeat(begin, parts)
    part = np.arange(index.size) - np.repeat(np.cumsum(parts) - parts, parts)
    segments = index.size
    if segments > MAX_SEGMENTS:
        raise ValueError(
            f"`batch_invariant` must need at most {MAX_SEGMENTS} segments, got {segments} for a "
            f"batch of {work.batch_size}; split the batch"
        )
    first = grid.first[row[index]]
    cuts = np.empty((segments + 1, 4), dtype=np.int64)
    cuts[:-1, 0], cuts[:-1, 1], cuts[:-1, 2] = seq[index], head[index], row[index]
    cuts[:-1, 3] = np.maximum((first // part_blocks + part) * part_blocks - first, 0)
    cuts[-1] = (grid.batch_size, 0, grid.offsets[-1], 0)

    is_split = parts > 1
    split_at, slots = begin[is_split], parts[is_split]
    places = np.empty((split_at.size, 4), dtype=np.int64)
    places[:, 0] = seq[split_at] * grid.heads + head[split_at]
    places[:, 1] = row[split_at] - grid.offsets[seq[split_at]]
    places[:, 2] = np.cumsum(slots) - slots
    places[:, 3] = slots
    split = SplitRows(places, grid.rows[row[split_at]])
    ranges = Ranges(
        cuts=cuts,
        starts=slice(0, segments),
        ends=slice(1, segments + 1),
        segments=slice(0, segments),
        num_sections=1,
        split=split,
        combine=schedule_combine(split, num_aiv, work.columns),
    )
    return assemble(
        work,
        grid,
        ranges,
        num_aic=max(segments, 1),
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
        invariant_cores=num_aic,
    )


def _parts(work: AttnWork, grid: RowGrid, part_blocks: int) -> np.ndarray:
    """Parts of every row block of the grid; those in front of a left window are left out."""
    merged = work.num_heads_q // grid.heads
    row_blocks = np.diff(grid.offsets)
    few_rows = np.repeat(work.q_lens * merged <= INVARIANT_SPLIT_ROWS, row_blocks)
    last = grid.first + np.maximum(grid.blocks - 1, 0)
    return np.where(few_rows, last // part_blocks - grid.first // part_blocks + 1, 1)


def _line_of_rows(
    grid: RowGrid, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sequence, head, row block of the grid and parts of every row block along the line."""
    unit_rows = np.repeat(np.diff(grid.offsets), grid.heads)
    unit = np.repeat(np.arange(unit_rows.size), unit_rows)
    seq, head = np.divmod(unit, grid.heads)
    in_unit = np.arange(unit.size) - np.repeat(np.cumsum(unit_rows) - unit_rows, unit_rows)
    row = grid.offsets[seq] + in_unit
    return seq, head, row, parts[row]


def _begins_segment(cost: np.ndarray, parts: np.ndarray, num_aic: int) -> np.ndarray:
    """Whether a segment starts at each row block of the line."""
    is_split = parts > 1
    begins = is_split.copy()
    whole = np.where(is_split, 0, cost)
    ends = np.cumsum(whole)
    if whole.any():
        # the run in which the middle of a row block falls
        runs = -(-int(ends[-1]) * num_aic // int(cost.sum()))
        run = (2 * ends - whole) * runs // (2 * ends[-1])
        begins[1:] |= run[1:] != run[:-1]
    begins[1:] |= is_split[:-1]
    begins[:1] = True
    return begins
