"""All key blocks of a batch on one line, and greedy walks along it.

The line runs head by head, row block by row block. Its coordinate is cycles: every key block is
as long as it costs. All heads of a sequence are alike, so only prefix sums over sequences and
over the row blocks of one head per sequence are stored.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from fa_triton.planner.cost import CYCLES_PER_UNIT, partial_cycles
from fa_triton.planner.row_grid import RowGrid

# sequence, head, row block as an index of the flattened grid, key blocks before the cut
Cut = tuple[int, int, int, int]


class Division(NamedTuple):
    """A line cut into one range per core.

    Attributes:
        cuts: ``[ranges+1]`` from the start of the line to its end; a cut of 0 key blocks lies
            between two row blocks. The end is (batch size, 0, row blocks of the grid, 0).
        makespan: Largest load.
        slack: What the last core could have taken in addition.
    """

    cuts: list[Cut]
    makespan: int
    slack: int

    @property
    def splits_rows(self) -> bool:
        """Whether any row block is shared."""
        return any(cut[3] for cut in self.cuts)


class Shortfall(NamedTuple):
    """A budget that does not reach the end of the line.

    Attributes:
        cuts: As in :class:`Division`, up to where the budgets reach.
        rest: Cycles left over.
        next_budget: Smallest budget that changes any cut.
    """

    cuts: list[Cut]
    rest: int
    next_budget: int


class Line:
    """The line of one batch.

    Args:
        grid: Row blocks.
        columns: Columns of an output row, for the cost of partial rows.
    """

    def __init__(self, grid: RowGrid, columns: int) -> None:
        self.grid = grid
        # before the first row block of the batch, and behind the last one
        first_seq = int(grid.offsets.searchsorted(0, side="right")) - 1
        self.start: Cut = (first_seq, 0, 0, 0)
        self.end: Cut = (grid.batch_size, 0, int(grid.offsets[-1]), 0)
        row_sums = grid.cost_offsets() * CYCLES_PER_UNIT
        of_seq = row_sums[grid.offsets]
        head_cycles = of_seq[1:] - of_seq[:-1]
        block_cycles = grid.norm * CYCLES_PER_UNIT
        write_cycles = partial_cycles(grid.rows, columns)
        self.total = int(row_sums[-1]) * grid.heads
        self.num_blocks = int(grid.blocks.sum()) * grid.heads
        self.num_row_blocks = int(grid.offsets[-1]) * grid.heads
        self.max_block = int(block_cycles.max(initial=0))
        self.max_write = int(write_cycles.max(initial=0))
        self._seq_sums: list[int] = (of_seq * grid.heads).tolist()
        # memory views: few elements are read, but as Python integers
        self._head_cycles = head_cycles.data
        self._row_sums = row_sums.data
        self._offsets = grid.offsets.data
        self._block_cycles = block_cycles.data
        self._write_cycles = write_cycles.data

    def coordinate(self, cut: Cut) -> int:
        """Cycles before a cut between two row blocks."""
        seq, head, row, _ = cut
        if seq == self.grid.batch_size:
            return self.total
        in_head = self._row_sums[row] - self._row_sums[self._offsets[seq]]
        return self._seq_sums[seq] + head * self._head_cycles[seq] + in_head

    def cut_at(self, row_blocks: int) -> Cut:
        """Before the row block that ``row_blocks`` others precede on the line."""
        grid = self.grid
        seq = int(np.searchsorted(grid.offsets * grid.heads, row_blocks, side="right")) - 1
        if seq == grid.batch_size:
            return self.end
        first, stop = self._offsets[seq], self._offsets[seq + 1]
        head, m = divmod(row_blocks - first * grid.heads, stop - first)
        return (seq, head, first + m, 0)

    def divide(
        self,
        cores: int,
        budget: int,
        *,
        split: bool,
        start: Cut | None = None,
        give_up: bool = False,
    ) -> Division | Shortfall:
        """Let every core in turn take as much as fits its budget.

        Taking the most is optimal: from a later start a core never ends earlier.

        Args:
            cores: Cores.
            budget: Cycles per core, writing of partial rows included.
            split: Whether row blocks may be cut.
            start: Where to begin, between two row blocks; None: at the start of the line.
            give_up: Stop as soon as the cores left cannot take the rest; the shortfall then only
                says that the budget is too small.
        """
        seq_sums, head_cycles, offsets = self._seq_sums, self._head_cycles, self._offsets
        row_sums, block_cycles = self._row_sums, self._block_cycles
        write_cycles, total = self._write_cycles, self.total
        cuts = [start or self.start]
        at = self.coordinate(cuts[0])
        seq = cuts[0][0]
        makespan = head_write = 0
        shared = -1
        next_budget = total
        for core in range(cores):
            if give_up and (cores - core) * budget < total - at:
                break
            reach = at + budget - head_write
            if reach >= total:
                load = total - at + head_write
                cuts.append(self.end)
                return Division(cuts, max(makespan, load), budget - load)
            # the row block in which the budget ends
            seq = bisect_right(seq_sums, reach, seq) - 1
            cycles = head_cycles[seq]
            head = (reach - seq_sums[seq]) // cycles
            row, stop = offsets[seq], offsets[seq + 1]
            row_start = seq_sums[seq] + head * cycles
            if stop - row > 1:
                # from coordinates of the flattened grid to coordinates of the line
                shift = row_start - row_sums[row]
                row = bisect_right(row_sums, reach - shift, row, stop) - 1
                row_start = row_sums[row] + shift
                cycles = row_sums[row + 1] - row_sums[row]
            load = row_start - at + head_write
            need = load + cycles
            block = tail_write = next_write = 0
            if split:
                write = write_cycles[row]
                # a row block cut at both ends is one partial, written once
                tail_write = 0 if row_start == shared else write
                step = block_cycles[row]
                room = reach - row_start - tail_write
                if room >= step:
                    block = room // step
                    load += block * step
                    next_write = write
                one_more = load + step + tail_write
                if one_more < need:
                    need = one_more
            if need < next_budget:
                next_budget = need
            cut_at = load + at - head_write
            if cut_at <= at:
                break
            if block:
                load += tail_write
                shared = row_start
            else:
                shared = -1
            if load > makespan:
                makespan = load
            cuts.append((seq, head, row, block))
            at, head_write = cut_at, next_write
        return Shortfall(cuts, total - at, next_budget)
