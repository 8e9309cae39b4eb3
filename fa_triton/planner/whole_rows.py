"""Whole row blocks dealt to the cores: no partial rows, no combine phase, no barrier.

Most of the line goes to the cores as one range each. The row blocks of a pool, the cheaper end of
the line, then fill up what the ranges left uneven: longest first to the least loaded core, and a
few exchanges between the slowest core and the fastest ones.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from fa_triton.planner.line import Cut, Division, Line

# row blocks per core in the pool, and how many there may be with what the ranges left over
POOL_ROWS = 4
MAX_POOL_ROWS = 16
# exchanges end at this share above the ideal, after so many of them per core at most
CLOSE_ENOUGH = 3e-4
EXCHANGES_PER_CORE = 4
# cores the slowest one may exchange with
PARTNERS = 6


@dataclass(frozen=True)
class Piece:
    """Whole row blocks in a row."""

    start: Cut
    end: Cut
    cycles: int


@dataclass(frozen=True)
class Deal:
    """Pieces of every core, the largest first, and the largest load."""

    cores: list[list[Piece]]
    makespan: int


def deal_whole_rows(line: Line, cores: int) -> Deal | None:
    """Deal whole row blocks to the cores.

    Args:
        line: The line.
        cores: Cores.

    Returns:
        The deal, or None where too few row blocks remain for the ranges.
    """
    ranges, pool = _ranges_and_pool(line, cores)
    if len(pool) > MAX_POOL_ROWS * cores:
        return None
    hands = [[piece] for piece in ranges] + [[] for _ in range(cores - len(ranges))]
    loads = [sum(piece.cycles for piece in hand) for hand in hands]
    _fill_up(hands, loads, pool)
    _exchange(hands, loads, fixed=len(ranges))
    for hand in hands:
        hand.sort(key=lambda piece: piece.cycles, reverse=True)
    return Deal(hands, max(loads))


def _ranges_and_pool(line: Line, cores: int) -> tuple[list[Piece], list[Piece]]:
    """One range per core from the larger part of the line; single row blocks of the rest."""
    total_rows = line.num_row_blocks
    pool_rows = POOL_ROWS * cores
    if total_rows <= 2 * pool_rows:
        return [], _row_pieces(line, line.start, line.end)
    after_head, before_tail = line.cut_at(pool_rows), line.cut_at(total_rows - pool_rows)
    head_cycles = line.coordinate(after_head)
    tail_cycles = line.total - line.coordinate(before_tail)
    # cheap row blocks even the loads out best
    if head_cycles < tail_cycles:
        start, pool = after_head, _row_pieces(line, line.start, after_head)
    else:
        start, pool = line.start, []
    budget = (line.total - min(head_cycles, tail_cycles)) // cores
    outcome = line.divide(cores, budget, split=False, start=start)
    cuts = outcome.cuts
    if isinstance(outcome, Division):
        return _pieces(line, cuts), pool
    return _pieces(line, cuts), pool + _row_pieces(line, cuts[-1], line.end)


def _pieces(line: Line, cuts: list[Cut]) -> list[Piece]:
    places = [line.coordinate(cut) for cut in cuts]
    return [
        Piece(cuts[i], cuts[i + 1], places[i + 1] - places[i])
        for i in range(len(cuts) - 1)
        if cuts[i] != cuts[i + 1]
    ]


def _row_pieces(line: Line, start: Cut, end: Cut) -> list[Piece]:
    """Single row blocks; one that sees nothing goes with the one before it."""
    grid = line.grid
    filled = grid.cost > 0
    cuts = [start]
    for seq in range(start[0], min(end[0], grid.batch_size - 1) + 1):
        first = int(grid.offsets[seq])
        rows = (first + np.flatnonzero(filled[first : int(grid.offsets[seq + 1])])).tolist()
        for head in range(grid.heads):
            head_cuts = [(seq, head, row, 0) for row in rows]
            cuts += [cut for cut in head_cuts if start < cut < end]
    cuts.append(end)
    return _pieces(line, cuts)


def _fill_up(hands: list[list[Piece]], loads: list[int], pool: list[Piece]) -> None:
    heap = [(load, core) for core, load in enumerate(loads)]
    heapq.heapify(heap)
    for piece in sorted(pool, key=lambda piece: piece.cycles, reverse=True):
        load, core = heap[0]
        hands[core].append(piece)
        loads[core] = load + piece.cycles
        heapq.heapreplace(heap, (loads[core], core))


def _exchange(hands: list[list[Piece]], loads: list[int], *, fixed: int) -> None:
    """Exchange a piece, or hand one over, while that makes the slowest core faster.

    The first piece of the first ``fixed`` cores is their range and stays.
    """
    close = sum(loads) / len(loads) * (1 + CLOSE_ENOUGH)
    for _ in range(EXCHANGES_PER_CORE * len(loads)):
        by_load = sorted(range(len(loads)), key=loads.__getitem__)
        slow = by_load[-1]
        if loads[slow] <= close:
            return
        own = _movable(hands[slow], slow < fixed)
        best = (loads[slow], slow, 0, 0)
        for fast in by_load[: min(PARTNERS, len(loads) - 1)]:
            moved = own[:, None] - _movable(hands[fast], fast < fixed)[None, :]
            slowest = np.maximum(loads[slow] - moved, loads[fast] + moved)
            give, take = divmod(int(slowest.argmin()), slowest.shape[1])
            best = min(best, (int(slowest[give, take]), fast, give, take))
        if best[0] >= loads[slow]:
            return
        _swap(hands, loads, slow, best[1], best[2] - 1, best[3] - 1, fixed)


def _movable(hand: list[Piece], keeps_first: bool) -> np.ndarray:
    """Cycles of the pieces a core may give away, after a 0 for giving none."""
    return np.array([0] + [piece.cycles for piece in hand[keeps_first:]], dtype=np.int64)


def _swap(
    hands: list[list[Piece]],
    loads: list[int],
    slow: int,
    fast: int,
    give: int,
    take: int,
    fixed: int,
) -> None:
    """Move pieces between two hands; -1 moves none."""
    given = hands[slow].pop(give + (slow < fixed)) if give >= 0 else None
    taken = hands[fast].pop(take + (fast < fixed)) if take >= 0 else None
    for piece, source, sink in ((given, slow, fast), (taken, fast, slow)):
        if piece is not None:
            hands[sink].append(piece)
            loads[source] -= piece.cycles
            loads[sink] += piece.cycles
