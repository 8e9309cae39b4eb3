"""The balanced planner: one range of key blocks per core, all as long as each other.

The blocks of a batch lie on one line (:mod:`fa_triton.planner.line`) that is cut once per core.
The smallest possible load of the slowest core is searched with the writing of partial rows inside.
Three forms compete, and the fastest with its barrier and its combine phase counted wins: ranges
that cut row blocks, ranges of whole row blocks, and whole row blocks dealt to the cores in several
pieces (:mod:`fa_triton.planner.whole_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.assemble import Ranges, assemble, split_rows
from fa_triton.planner.combine import schedule_combine
from fa_triton.planner.cost import BARRIER_CYCLES
from fa_triton.planner.line import Division, Line
from fa_triton.planner.row_grid import ONE_HEAD, POSITION_OUTER, RowGrid, build_row_grid
from fa_triton.planner.schedule import Plan, check_block_sizes, check_core_counts
from fa_triton.planner.whole_rows import Deal, deal_whole_rows
from fa_triton.planner.work import AttnWork

# the search ends when the budget is known to this share of it, or to so many cycles
_BUDGET_PRECISION = 2**-15
_BUDGET_TOLERANCE = BARRIER_CYCLES // 5
# so many steps of it follow the work left over or the room left, the others bisect
_GUIDED_PROBES = 3
# larger budgets that are tried because they cut fewer row blocks
_RELAXED_BUDGETS = (1.02, 1.06, 1.15, 1.35, 1.7)
# whole row blocks are dealt where ranges stay further than this above the ideal
_WORTH_DEALING = 1e-3


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Ranges of the cores and how long they take, combine included."""

    ranges: Ranges
    makespan: int


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
        best = _divided(Division(cuts, 0, 0), grid, num_aiv, work.columns)
    return assemble(
        work,
        grid,
        best.ranges,
        num_aic=num_aic,
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
    )


def _search(line: Line, num_aic: int, num_aiv: int, columns: int) -> _Candidate:
    """Best division over cut and uncut row blocks and over the budget."""
    cores = min(num_aic, line.num_blocks)
    least = -(-line.total // cores)
    division = _smallest_division(line, cores, least, None, split=True)
    best = _divided(division, line.grid, num_aiv, columns)
    for factor in _RELAXED_BUDGETS:
        budget = int(division.makespan * factor)
        if budget + BARRIER_CYCLES >= best.makespan:
            break
        relaxed = line.divide(cores, budget, split=True)
        if isinstance(relaxed, Division):
            candidate = _divided(relaxed, line.grid, num_aiv, columns)
            best = min(best, candidate, key=lambda c: c.makespan)
    whole = line.divide(cores, best.makespan, split=False, give_up=True)
    if isinstance(whole, Division):
        whole = _smallest_division(line, cores, least, whole, split=False)
        best = _divided(whole, line.grid, num_aiv, columns)
    has_prefill = line.grid.rows.size > line.grid.batch_size
    if has_prefill and best.makespan - least > least * _WORTH_DEALING:
        deal = deal_whole_rows(line, cores)
        if deal is not None and deal.makespan < best.makespan:
            best = _dealt(deal, line.grid, num_aic, num_aiv, columns)
    return best


def _smallest_division(
    line: Line, cores: int, least: int, best: Division | None, *, split: bool
) -> Division:
    """Search the smallest budget that suffices, from ``least`` cycles up to that of ``best``.

    Ranges of whole row blocks are searched to the cycle, others as precisely as it matters.
    """
    enough = least + line.max_block + 2 * line.max_write
    upper = best.makespan if best else enough
    tolerance = min(int(upper * _BUDGET_PRECISION), _BUDGET_TOLERANCE) if split else 0
    # cores waste half a block and write one partial on average
    guess = min(least + line.max_block // 2 + line.max_write, upper)
    probes = 0
    while best is None or upper - least > tolerance:
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


def _divided(division: Division, grid: RowGrid, num_aiv: int, columns: int) -> _Candidate:
    """One range per core."""
    ranges = Ranges.along(np.array(division.cuts, dtype=np.int64), grid, num_aiv, columns)
    barrier = BARRIER_CYCLES if ranges.split.rows.size else 0
    return _Candidate(ranges, division.makespan + barrier + ranges.combine.makespan)


def _dealt(deal: Deal, grid: RowGrid, num_aic: int, num_aiv: int, columns: int) -> _Candidate:
    """Several pieces per core, one in each section."""
    placed = [
        (section * num_aic + core, piece)
        for core, pieces in enumerate(deal.cores)
        for section, piece in enumerate(pieces)
    ]
    cuts = [piece.start for _, piece in placed] + [piece.end for _, piece in placed]
    cuts = np.array(cuts, dtype=np.int64)
    split = split_rows(cuts, grid)
    return _Candidate(
        Ranges(
            cuts=cuts,
            starts=slice(0, len(placed)),
            ends=slice(len(placed), 2 * len(placed)),
            segments=[segment for segment, _ in placed],
            num_sections=max(len(pieces) for pieces in deal.cores),
            split=split,
            combine=schedule_combine(split, num_aiv, columns),
        ),
        deal.makespan,
    )
