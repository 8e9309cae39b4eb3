"""The balanced planner: one range of key blocks per core, all as long as each other.

The blocks of a batch lie on one line (:mod:`fa_triton.planner.line`) that is cut once per core.
The smallest possible load of the slowest core is searched by bisection with the writing of partial
rows inside; a division at row blocks only, which needs no combine phase, is preferred where it is
at least as fast in all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.combine import CombineSchedule, SplitRows, schedule_combine
from fa_triton.planner.cost import BARRIER_CYCLES
from fa_triton.planner.line import Division, Line
from fa_triton.planner.row_grid import ONE_HEAD, POSITION_OUTER, RowGrid, build_row_grid
from fa_triton.planner.schedule import (
    BALANCED,
    CUT_AT_END,
    CUT_AT_START,
    Plan,
    check_block_sizes,
    check_core_counts,
)
from fa_triton.planner.work import AttnWork

# the search ends when the budget is known to this share of it
_BUDGET_PRECISION = 2**-15
# so many steps of it follow the work left over or the room left, the others bisect
_GUIDED_PROBES = 3
# larger budgets that are tried because they cut fewer row blocks
_RELAXED_BUDGETS = (1.02, 1.06, 1.15, 1.35, 1.7)


@dataclass(frozen=True, eq=False)
class _Candidate:
    division: Division
    split: SplitRows
    combine: CombineSchedule

    @property
    def makespan(self) -> int:
        if not self.division.splits_rows:
            return self.division.makespan
        return self.division.makespan + BARRIER_CYCLES + self.combine.makespan


def plan(
    work: AttnWork,
    *,
    num_aic: int,
    num_aiv: int,
    block_q: int,
    block_kv: int,
    one_head_rows: bool = False,
) -> Plan:
    """Plan a batch so that the slowest core, combine included, is as fast as possible.

    Args:
        work: Lengths, heads and mask.
        num_aic: Cube cores.
        num_aiv: Vector cores.
        block_q: Rows of a row block.
        block_kv: Keys of a key block.
        one_head_rows: Rows are the positions of one query head (``bn = b*Nq + n``) instead of
            merged over the group (``bn = b*Nkv + n2``, position outer).

    Returns:
        The plan.

    Raises:
        ValueError: Core counts or block sizes are not usable.
    """
    check_core_counts(num_aic, num_aiv)
    check_block_sizes(block_q, block_kv)
    grid = build_row_grid(work, block_q, block_kv, ONE_HEAD if one_head_rows else POSITION_OUTER)
    line = Line(grid, work.columns)
    if line.total:
        best = _search(line, num_aic, num_aiv, work.columns)
    else:
        # rows without a visible key still need a core that writes them
        cuts = [line.start, line.end] if grid.rows.size else [line.end]
        best = _candidate(Division(cuts, 0, 0), grid, num_aiv, work.columns)
    return _assemble(work, grid, best, num_aic, num_aiv, block_q, block_kv, one_head_rows)


def _search(line: Line, num_aic: int, num_aiv: int, columns: int) -> _Candidate:
    """Best division over cut and uncut row blocks and over the budget."""
    cores = min(num_aic, line.num_blocks)
    least = -(-line.total // cores)
    division = _smallest_division(line, cores, least, None, split=True)
    best = _candidate(division, line.grid, num_aiv, columns)
    for factor in _RELAXED_BUDGETS:
        budget = int(division.makespan * factor)
        if budget + BARRIER_CYCLES >= best.makespan:
            break
        relaxed = line.divide(cores, budget, split=True)
        if isinstance(relaxed, Division):
            candidate = _candidate(relaxed, line.grid, num_aiv, columns)
            best = min(best, candidate, key=lambda c: c.makespan)
    if best.division.splits_rows:
        whole = line.divide(cores, best.makespan, split=False)
        if isinstance(whole, Division):
            whole = _smallest_division(line, cores, least, whole, split=False)
            best = _candidate(whole, line.grid, num_aiv, columns)
    return best


def _smallest_division(
    line: Line, cores: int, least: int, best: Division | None, *, split: bool
) -> Division:
    """Search the smallest budget that suffices, from ``least`` cycles up to that of ``best``."""
    enough = least + line.max_block + 2 * line.max_write
    upper = best.makespan if best else enough
    # cores waste half a block and write one partial on average
    guess = min(least + line.max_block // 2 + line.max_write, upper)
    probes = 0
    while best is None or upper - least > upper * _BUDGET_PRECISION:
        probes += 1
        budget = min(max(guess, least), upper)
        outcome = line.divide(cores, budget, split=split)
        if isinstance(outcome, Division):
            best, upper = outcome, outcome.makespan
            guess = upper - outcome.slack // cores - 1
        else:
            least = outcome.next_budget
            guess = budget + outcome.rest // cores + 1
        if probes > _GUIDED_PROBES:
            guess = (least + upper) // 2
    return best


def _candidate(division: Division, grid: RowGrid, num_aiv: int, columns: int) -> _Candidate:
    split = _split_rows(division, grid)
    return _Candidate(division, split, schedule_combine(split, num_aiv, columns))


def _split_rows(division: Division, grid: RowGrid) -> SplitRows:
    """Row blocks with a cut inside; slots are numbered along the line."""
    inside = np.array([cut[:3] for cut in division.cuts if cut[3]], dtype=np.int64)
    inside = inside.reshape(-1, 3)
    changes = np.append(True, (inside[1:] != inside[:-1]).any(axis=1))[: len(inside)]
    begin = np.flatnonzero(changes)
    slots = np.diff(np.append(begin, len(inside))) + 1
    seq, head, row = inside[begin].T
    return SplitRows(
        bn=seq * grid.heads + head,
        m=row - grid.offsets[seq],
        first_slot=np.cumsum(slots) - slots,
        slots=slots,
        rows=grid.rows[row],
    )


def _assemble(
    work: AttnWork,
    grid: RowGrid,
    best: _Candidate,
    num_aic: int,
    num_aiv: int,
    block_q: int,
    block_kv: int,
    one_head_rows: bool,
) -> Plan:
    cuts = np.array(best.division.cuts, dtype=np.int64)
    used = len(cuts) - 1
    seq, head, row, block = cuts[:, 0], cuts[:, 1], cuts[:, 2], cuts[:, 3]
    m = np.where(seq < grid.batch_size, row - grid.offsets[seq], 0)
    first = np.append(grid.first, 0)[row]
    positions = np.stack([seq * grid.heads + head, m, first + block], axis=1)

    is_cut = block > 0
    # row blocks before the cut, in the order the cores walk them
    seq_rows = np.append(np.diff(grid.offsets), 0)
    ordinal = grid.offsets[seq] * grid.heads + head * seq_rows[seq] + m
    row_blocks = ordinal[1:] + is_cut[1:] - ordinal[:-1]

    same_row = (positions[1:, :2] == positions[:-1, :2]).all(axis=1)
    partials = is_cut[:-1].astype(np.int64) + is_cut[1:] - (is_cut[:-1] & is_cut[1:] & same_row)

    starts = np.zeros((num_aic, 3), dtype=np.int64)
    ends = np.zeros((num_aic, 3), dtype=np.int64)
    columns = np.zeros((3, num_aic), dtype=np.int64)
    starts[:used], ends[:used] = positions[:-1], positions[1:]
    columns[0, :used] = np.cumsum(partials) - partials
    columns[1, :used] = row_blocks
    columns[2, :used] = is_cut[:-1] * CUT_AT_START + is_cut[1:] * CUT_AT_END
    return Plan(
        work=work,
        planner=BALANCED,
        num_aic=num_aic,
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
        num_sections=1,
        is_fd=best.split.bn.size > 0,
        starts=starts,
        ends=ends,
        first_slots=columns[0],
        row_blocks=columns[1],
        cuts=columns[2],
        slots_per_section=int(best.split.slots.sum()),
        tasks=best.combine.tasks,
        task_ranges=best.combine.ranges,
        grid=grid,
    )
