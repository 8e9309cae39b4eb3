"""Pieces of row blocks as a peer launches them, and what they cost by our assumptions.

Every peer pays the costs of ``fa_triton.planner.cost`` and nothing else: blocks, partial rows, one
barrier before a combine phase. The combine itself is spread as ours is, row by row over all vector
cores, which is the best there is: what differs is how the attention is cut and dealt.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fa_triton.planner.combine import SplitRows, schedule_combine
from fa_triton.planner.cost import BARRIER_CYCLES, CYCLES_PER_UNIT, block_units, partial_cycles
from fa_triton.planner.row_grid import POSITION_OUTER, RowGrid, build_row_grid
from fa_triton.planner.work import AttnWork

# launch order and cycles of the items -> load of every core
Dealer = Callable[["Items"], np.ndarray]


@dataclass(frozen=True, eq=False)
class Problem:
    """What every peer plans.

    Attributes:
        work: The batch.
        grid: Its row blocks, heads of a group merged.
        block_kv: Keys of a key block.
        cores: Cube cores.
    """

    work: AttnWork
    grid: RowGrid
    block_kv: int
    cores: int

    @staticmethod
    def of(work: AttnWork, block_q: int, block_kv: int, cores: int) -> Problem:
        """Cut a batch into row blocks."""
        return Problem(
            work, build_row_grid(work, block_q, block_kv, POSITION_OUTER), block_kv, cores
        )

    @property
    def row_seq(self) -> np.ndarray:
        """Sequence of every row block of the grid."""
        return np.repeat(np.arange(self.grid.batch_size), np.diff(self.grid.offsets))

    @property
    def visible(self) -> tuple[np.ndarray, np.ndarray]:
        """First visible key of every row block, and the key after its last one."""
        low = self.grid.first * self.block_kv
        keys = self.work.kv_lens[self.row_seq]
        return low, np.minimum((self.grid.first + self.grid.blocks) * self.block_kv, keys)


@dataclass(frozen=True, eq=False)
class Items:
    """Pieces in launch order.

    Attributes:
        problem: What they are pieces of.
        row: Row block of the grid.
        head: Key head.
        low: First key.
        high: Key after the last one; pieces without a key are not launched.
        is_partial: Whether the piece writes partial rows.
    """

    problem: Problem
    row: np.ndarray
    head: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_partial: np.ndarray

    @property
    def cycles(self) -> np.ndarray:
        """Cycles of every piece, the writing of partial rows included."""
        grid, block_kv = self.problem.grid, self.problem.block_kv
        full, tail = np.divmod(self.high - self.low, block_kv)
        rows = grid.rows[self.row]
        units = full * grid.norm[self.row]
        units += np.where(tail > 0, block_units(rows, tail), 0)
        writes = partial_cycles(rows, self.problem.work.columns)
        return units * CYCLES_PER_UNIT + np.where(self.is_partial, writes, 0)

    def reordered(self, order: np.ndarray) -> Items:
        """The same pieces in another launch order."""
        fields = (self.row, self.head, self.low, self.high, self.is_partial)
        return Items(self.problem, *(values[order] for values in fields))


def cut_into_chunks(problem: Problem, first: np.ndarray, keys: np.ndarray) -> Items:
    """Cut every row block at ``first + i * keys`` and launch head by head, row by row.

    Args:
        problem: The problem.
        first: ``[R]`` where the first chunk of each row block of the grid starts.
        keys: ``[R]`` keys per chunk.
    """
    low, high = problem.visible
    chunks = np.maximum(-(-(high - first) // keys), 1)
    row = np.repeat(np.arange(low.size), chunks)
    index = np.arange(row.size) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    start = first[row] + index * keys[row]
    item_low = np.maximum(start, low[row])
    item_high = np.minimum(start + keys[row], high[row])
    has_keys = item_high > item_low
    row, item_low, item_high = row[has_keys], item_low[has_keys], item_high[has_keys]
    pieces = np.bincount(row, minlength=low.size)
    one_head = Items(problem, row, np.zeros_like(row), item_low, item_high, pieces[row] > 1)
    return _for_all_heads(one_head)


def _for_all_heads(items: Items) -> Items:
    """Repeat the pieces of head 0 for all heads, sequence by sequence."""
    problem = items.problem
    heads = problem.grid.heads
    index = np.tile(np.arange(items.row.size), heads)
    head = np.repeat(np.arange(heads), items.row.size)
    all_heads = Items(
        problem,
        items.row[index],
        head,
        items.low[index],
        items.high[index],
        items.is_partial[index],
    )
    return all_heads.reordered(np.lexsort((index, head, problem.row_seq[all_heads.row])))


def round_robin(items: Items) -> np.ndarray:
    """Core ``i`` takes the pieces ``i``, ``i + cores``, ...: a grid without a scheduler."""
    core = np.arange(items.row.size) % items.problem.cores
    return np.bincount(core, items.cycles, minlength=items.problem.cores)


def next_free_core(items: Items) -> np.ndarray:
    """The core that is free first takes the next piece: a persistent kernel with a counter."""
    loads = [0] * items.problem.cores
    for cycles in items.cycles.tolist():
        heapq.heapreplace(loads, loads[0] + cycles)
    return np.array(loads)


def makespan(items: Items, deal: Dealer) -> int:
    """Cycles of the slowest core, of the barrier and of the slowest vector core."""
    attention = int(deal(items).max(initial=0))
    if not items.is_partial.any():
        return attention
    grid, split = items.problem.grid, items.is_partial
    unit = items.head[split] * grid.rows.size + items.row[split]
    places, slots = np.unique(unit, return_counts=True)
    columns = np.zeros((places.size, 4), dtype=np.int64)
    columns[:, 3] = slots
    rows = SplitRows(columns, grid.rows[places % grid.rows.size])
    combine = schedule_combine(rows, 2 * items.problem.cores, items.problem.work.columns)
    return attention + BARRIER_CYCLES + combine.makespan
