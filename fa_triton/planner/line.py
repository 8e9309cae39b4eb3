"""All key blocks of a batch on one line, and greedy walks along it.

The line runs head by head, row block by row block. Its coordinate is cycles: every key block is
as long as it costs. All heads of a sequence are alike, so only prefix sums over sequences and
over the row blocks of one head per sequence are stored.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fa_triton.planner.cost import CYCLES_PER_UNIT, partial_cycles
from fa_triton.planner.row_grid import RowGrid


class Cut(NamedTuple):
    """A place on the line between two key blocks.

    Attributes:
        seq: Sequence; the batch size at the end of the line.
        head: Head of the sequence.
        row: Row block as an index of the flattened grid.
        block: Key blocks of the row block before the cut; 0 at the start of a row block.
        cycles: Coordinate.
    """

    seq: int
    head: int
    row: int
    block: int
    cycles: int


@dataclass(frozen=True)
class Division:
    """Cuts ``[cores+1]`` from the start of the line to its end, and the largest load."""

    cuts: list[Cut]
    makespan: int

    @property
    def splits_rows(self) -> bool:
        """Whether any row block is shared."""
        return any(cut.block for cut in self.cuts)


class Line:
    """The line of one batch.

    Args:
        grid: Row blocks.
        columns: Columns of an output row, for the cost of partial rows.
    """

    def __init__(self, grid: RowGrid, columns: int) -> None:
        self.grid = grid
        row_sums = grid.cost_offsets() * CYCLES_PER_UNIT
        head_cycles = np.diff(row_sums[grid.offsets])
        seq_sums = np.zeros(grid.batch_size + 1, dtype=np.int64)
        np.cumsum(head_cycles * grid.heads, out=seq_sums[1:])
        self.total = int(seq_sums[-1])
        self._seq_sums: list[int] = seq_sums.tolist()
        self._head_cycles: list[int] = head_cycles.tolist()
        self._row_sums: list[int] = row_sums.tolist()
        self._offsets: list[int] = grid.offsets.tolist()
        self._block_cycles = grid.norm * CYCLES_PER_UNIT
        self._write_cycles = partial_cycles(grid.rows, columns)
        self.max_block = int(self._block_cycles.max(initial=0))
        self.max_write = int(self._write_cycles.max(initial=0))
        self.num_blocks = int(grid.blocks.sum()) * grid.heads

    @property
    def start(self) -> Cut:
        """The first row block of the batch."""
        seq = bisect_right(self._offsets, 0) - 1
        return Cut(seq, 0, 0, 0, 0)

    @property
    def end(self) -> Cut:
        """The end of the line."""
        return Cut(self.grid.batch_size, 0, self._offsets[-1], 0, self.total)

    def divide(self, cores: int, budget: int, *, split: bool) -> Division | None:
        """Let every core in turn take as much as fits its budget.

        Taking the most is optimal here: from a later start a core never ends earlier.

        Args:
            cores: Cores.
            budget: Cycles per core, writing of partial rows included.
            split: Whether row blocks may be cut.

        Returns:
            The division, or None where the budget is too small.
        """
        cut = self.start
        cuts = [cut]
        makespan = 0
        for _ in range(cores):
            cut, load = self._advance(cut, budget, split)
            if load == 0:
                return None
            cuts.append(cut)
            makespan = max(makespan, load)
            if cut.cycles == self.total:
                return Division(cuts, makespan)
        return None

    def _advance(self, start: Cut, budget: int, split: bool) -> tuple[Cut, int]:
        """Furthest cut within the budget and the load up to it; a load of 0 is no progress."""
        head_write = int(self._write_cycles[start.row]) if start.block else 0
        reach = start.cycles + budget - head_write
        if reach >= self.total:
            return self.end, self.total - start.cycles + head_write
        seq = bisect_right(self._seq_sums, reach) - 1
        rest = reach - self._seq_sums[seq]
        head = rest // self._head_cycles[seq]
        rest -= head * self._head_cycles[seq]
        first, stop = self._offsets[seq], self._offsets[seq + 1]
        row, before = first, 0
        if stop - first > 1:
            base = self._row_sums[first]
            row = bisect_right(self._row_sums, base + rest, first, stop + 1) - 1
            before = self._row_sums[row] - base
        row_cycles = self._seq_sums[seq] + head * self._head_cycles[seq] + before
        block = tail_write = 0
        if split:
            tail_write = int(self._write_cycles[row])
            # a row block cut at both ends is one partial, paid for at its start
            if start.block and (seq, head, row) == (start.seq, start.head, start.row):
                tail_write = 0
            block = max(rest - before - tail_write, 0) // int(self._block_cycles[row])
        if block == 0:
            tail_write = 0
        cycles = row_cycles + block * int(self._block_cycles[row])
        if cycles <= start.cycles:
            return start, 0
        return Cut(seq, head, row, block, cycles), cycles - start.cycles + head_write + tail_write
