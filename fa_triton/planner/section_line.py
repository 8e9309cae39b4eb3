"""Prefix sums over heads and row blocks, for the greedy pass of section_stream_k."""

from __future__ import annotations

import numpy as np

from fa_triton.planner.row_grid import RowGrid


class SectionLine:
    """All row blocks of the batch, head by head, with the prefix sums the greedy pass needs.

    A run of whole items goes on while half of an item's last block may still overhang the limit, so
    the test is against ``sum - last//2``, whose running maximum can be searched.
    """

    def __init__(self, grid: RowGrid) -> None:
        self.grid = grid
        self.num_heads = grid.heads
        self.last = grid.last
        self.row_sums = grid.cost_offsets()
        seq_sums = self.row_sums[grid.offsets]
        self.bn_cost = np.repeat(np.diff(seq_sums), grid.heads)
        self.bn_blocks = np.repeat(
            np.diff(np.concatenate(([0], np.cumsum(grid.blocks)))[grid.offsets]), grid.heads
        )
        self.bn_last = np.repeat(self._last_of_sequences(), grid.heads)
        self.bn_sums = np.concatenate(([0], np.cumsum(self.bn_cost)))
        self.total = int(self.bn_sums[-1])
        self.next_row = _next_filled(grid.cost)
        self.next_bn = _next_filled(self.bn_cost)
        self._row_stops = _running_stops(self.row_sums, grid.cost, self.last)
        self._bn_stops = _running_stops(self.bn_sums, self.bn_cost, self.bn_last)

    def _last_of_sequences(self) -> np.ndarray:
        """Units of the last block of the last row block that sees anything, per sequence."""
        grid = self.grid
        last = np.zeros(grid.batch_size, dtype=np.int64)
        filled = np.flatnonzero(grid.blocks)
        # later row blocks overwrite earlier ones
        last[np.searchsorted(grid.offsets, filled, side="right") - 1] = self.last[filled]
        return last

    def row_index(self, bn: int, m: int) -> int:
        """Index of a row block in the flattened grid."""
        return int(self.grid.offsets[bn // self.num_heads]) + m

    def whole_bns(self, bn: int, budget: int) -> int:
        """First head, from ``bn`` on, that does not fit ``budget`` units any more."""
        if budget < 0:
            return int(self.next_bn[bn])
        return int(np.searchsorted(self._bn_stops, budget + self.bn_sums[bn], side="right"))

    def whole_rows(self, row: int, budget: int) -> int:
        """First row block, from ``row`` on, that does not fit ``budget`` units any more."""
        stop = int(np.searchsorted(self._row_stops, budget + self.row_sums[row], side="right"))
        return int(self.next_row[stop])


def _running_stops(sums: np.ndarray, cost: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Running maximum of the budget that each item needs; items without cost never stop a run."""
    needs = np.where(cost > 0, sums[1:] - last // 2, -1)
    return np.maximum.accumulate(needs) if needs.size else needs


def _next_filled(cost: np.ndarray) -> np.ndarray:
    """Index of the first item with cost at or after each index, ``[N+1]``."""
    index = np.where(cost > 0, np.arange(cost.size), cost.size)
    return np.append(np.minimum.accumulate(index[::-1])[::-1], cost.size)
