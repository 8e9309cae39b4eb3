"""Whether a plan table visits every visible block once, judged from the masks alone.

The table is decoded word by word; what should be in it is derived here from lengths and window,
without the planner's own grid. A segment is a run of row blocks of which only the first and the
last can be cut, so it is enough that the runs, sorted, follow each other without gap or overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.schedule import CUT_AT_END, CUT_AT_START
from fa_triton.planner.table import Header, decode_segments, read_header
from fa_triton.problem import BatchProblem

# Columns of a segment of the table.
_FIRST_KEY, _LAST_KEY, _ROW_BLOCKS, _CUTS = 2, 5, 7, 8


@dataclass(frozen=True)
class Coverage:
    """What a table covers.

    Attributes:
        row_blocks: Row blocks of the batch.
        blocks: Blocks of rows and keys with a visible pair.
        segments: Runs of row blocks, one per core and section at most.
        faults: What is wrong; empty for a right plan.
    """

    row_blocks: int
    blocks: int
    segments: int
    faults: tuple[str, ...]


def check_coverage(
    words: np.ndarray, problem: BatchProblem, lengths: tuple[np.ndarray, np.ndarray]
) -> Coverage:
    """Compare a table of the balanced planner with what the masks show.

    Args:
        words: The table.
        problem: The call it is for.
        lengths: Actual query and key lengths.
    """
    header = read_header(words)
    if header.is_section_stream_k:
        raise ValueError("`words` must be a balanced table, got one of section_stream_k")
    rows = _RowBlocks(header, problem, lengths)
    segments = decode_segments(words)[0].astype(np.int64)
    segments = segments[segments[:, _ROW_BLOCKS] > 0]
    return Coverage(rows.total, rows.count_blocks(), len(segments), _faults(segments, rows))


class _RowBlocks:
    """Row blocks of all heads in one line, and the key blocks that each one sees."""

    def __init__(
        self, header: Header, problem: BatchProblem, lengths: tuple[np.ndarray, np.ndarray]
    ) -> None:
        self._q_lens, self._kv_lens = lengths
        self._group = 1 if header.one_head_rows else problem.group
        self._heads = problem.num_heads_q // self._group
        self._window = problem.window
        self._block_q, self._block_kv = header.block_q, header.block_kv
        self._counts = -(-self._q_lens * self._group // self._block_q)
        self.offsets = np.append(0, np.cumsum(np.repeat(self._counts, self._heads)))
        self.total = int(self.offsets[-1])

    def visible(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First key block that a row block sees, and the one after the last."""
        bn = np.searchsorted(self.offsets, index, side="right") - 1
        return self._visible(bn // self._heads, index - self.offsets[bn])

    def count_blocks(self) -> int:
        """Blocks of rows and keys with a visible pair; all heads of a sequence are alike."""
        blocks = 0
        for seq, count in enumerate(self._counts.tolist()):
            first, end = self._visible(np.full(count, seq), np.arange(count))
            blocks += int((end - first).sum()) * self._heads
        return blocks

    def _visible(self, seq: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sq, skv = self._q_lens[seq], self._kv_lens[seq]
        first_row = m * self._block_q // self._group
        last_row = (np.minimum((m + 1) * self._block_q, sq * self._group) - 1) // self._group
        left, right = self._window
        low = np.zeros_like(sq) if left < 0 else np.maximum(first_row + skv - sq - left, 0)
        end = skv if right < 0 else np.minimum(last_row + skv - sq + right + 1, skv)
        seen = low < end
        return (
            np.where(seen, low // self._block_kv, 0),
            np.where(seen, -(-end // self._block_kv), 0),
        )


def _faults(segments: np.ndarray, rows: _RowBlocks) -> tuple[str, ...]:
    """Every way in which the runs do not cover the line once."""
    if not len(segments):
        return (f"no segment visits any of {rows.total} row blocks",) if rows.total else ()
    begin = rows.offsets[segments[:, 0]] + segments[:, 1]
    last = begin + segments[:, _ROW_BLOCKS] - 1
    if begin.min() < 0 or last.max() >= rows.total:
        return (f"a segment reaches row block {last.max()} of {rows.total}",)
    low, _ = rows.visible(begin)
    _, whole = rows.visible(last)
    at_start = (segments[:, _CUTS] & CUT_AT_START) > 0
    at_end = (segments[:, _CUTS] & CUT_AT_END) > 0
    low = np.where(at_start, segments[:, _FIRST_KEY], low)
    high = np.where(at_end, segments[:, _LAST_KEY], whole)
    order = np.lexsort((low, begin))
    begin, last, low, high, whole = (a[order] for a in (begin, last, low, high, whole))

    # where a run ends inside a row block, the next one must go on there
    unfinished = high < whole
    next_row = np.where(unfinished, last, last + 1)
    fresh, _ = rows.visible(np.minimum(next_row, rows.total - 1))
    next_low = np.where(unfinished, high, fresh)
    faults = []
    if begin[0] != 0 or low[0] != rows.visible(np.zeros(1, np.int64))[0][0]:
        faults.append(f"the first segment begins at row block {begin[0]}, key block {low[0]}")
    if next_row[-1] != rows.total:
        faults.append(f"the last segment ends in row block {last[-1]} of {rows.total}")
    wrong = np.flatnonzero((begin[1:] != next_row[:-1]) | (low[1:] != next_low[:-1]))
    if wrong.size:
        at = int(wrong[0])
        faults.append(
            f"{wrong.size} segments leave a gap or overlap, the first goes on at row block "
            f"{begin[at + 1]}, key block {low[at + 1]} instead of {next_row[at]}, {next_low[at]}"
        )
    beyond = (high > whole) | ((begin == last) & (high < low))
    if beyond.any():
        faults.append(f"{int(beyond.sum())} segments end outside of their last row block")
    return tuple(faults)
