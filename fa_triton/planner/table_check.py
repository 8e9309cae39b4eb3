"""Whether the body of a metadata table can have come from a planner, word by word.

The header says for which problem a table is (:func:`fa_triton.planner.table.check_header`); kernels
follow the body blindly. A damaged body is found here on the host, without the lengths: ranges that
do not follow each other, slots or tasks that do not fit the cuts, positions outside the problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.schedule import CUT_AT_END, CUT_AT_START, TASK_WORDS
from fa_triton.planner.table import HEADER_WORDS, SEGMENT_WORDS, Header, read_header

# words of a balanced segment that are written
_MEANINGFUL_WORDS = 9
_POSITION = ("head entry", "row block", "key block")


@dataclass(frozen=True, eq=False)
class _Items:
    """Items of equal length in a table: segments or tasks.

    Attributes:
        name: What one of them is called.
        words: ``[items, length]``, int64.
        offset: Word of the table at which the first one starts.
    """

    name: str
    words: np.ndarray
    offset: int

    def require(
        self, good: np.ndarray, column: int, meaning: str, of: np.ndarray | None = None
    ) -> None:
        """Refuse the first item that is not good and name one of its words.

        Args:
            good: Whether each item is good.
            column: The word of an item to name.
            meaning: What the word means.
            of: The items in question; None: all.
        """
        if good.all():
            return
        first_bad = int(good.argmin())
        item = first_bad if of is None else int(of[first_bad])
        word = self.offset + item * self.words.shape[1] + column
        raise _unfit(f"{self.words[item, column]} in word {word}, {meaning} of {self.name} {item}")


def _unfit(what: str) -> ValueError:
    return ValueError(
        f"`metadata` must be a table as flash_attn_metadata made it, got {what}; make it again"
    )


def check_table(words: np.ndarray, *, num_heads_q: int, num_heads_kv: int, head_dim: int) -> Header:
    """Verify the body of a table on the host.

    Args:
        words: The whole table.
        num_heads_q: Query heads of the problem.
        num_heads_kv: Key heads of the problem.
        head_dim: Head dim that was planned, which the column parts of tasks add up to.

    Returns:
        The header.

    Raises:
        ValueError: A word cannot be what a planner wrote; names the word.
    """
    header = read_header(words)
    header.check_length(words.size)
    values = words[: header.used_words].astype(np.int64)
    heads = num_heads_q if header.one_head_rows else num_heads_kv
    group = num_heads_q // heads
    limits = np.array(
        [
            header.batch_size * heads,
            -(-header.longest_q * group // header.block_q),
            -(-header.longest_kv // header.block_kv),
        ]
    )
    body = values[HEADER_WORDS : header.vectors_offset].reshape(-1, SEGMENT_WORDS)
    segments = _Items("segment", body, HEADER_WORDS)
    _check_positions(segments, limits)
    if header.is_section_stream_k:
        _check_section_segments(segments, header)
        _check_section_tasks(values, header, limits)
    else:
        splits = _check_balanced_segments(segments, header, int(limits[0]))
        _check_task_ranges(values, header)
        _check_balanced_tasks(values, header, splits, head_dim)
    return header


def _check_positions(segments: _Items, limits: np.ndarray) -> None:
    """Positions lie in the problem, or at its end, and no range runs backwards."""
    for first, side in ((0, "start"), (3, "end")):
        position = segments.words[:, first : first + 3]
        at_end = (position == [limits[0], 0, 0]).all(axis=1)
        for axis, name in enumerate(_POSITION):
            inside = (position[:, axis] >= 0) & (position[:, axis] < max(limits[axis], 1))
            segments.require(inside | at_end, first + axis, f"{side} {name}")
    forward = _order(segments.words[:, 0:3]) <= _order(segments.words[:, 3:6])
    segments.require(forward, 3, "end head entry")


def _order(positions: np.ndarray) -> np.ndarray:
    """Numbers in the order of positions, whose coordinates are below 2**21 but the first."""
    return (positions[:, 0] << 42) + (positions[:, 1] << 21) + positions[:, 2]


def _busy(segments: _Items) -> np.ndarray:
    return (segments.words[:, 0:3] != segments.words[:, 3:6]).any(axis=1)


def _check_balanced_segments(segments: _Items, header: Header, num_bn: int) -> np.ndarray:
    """Ranges follow each other; returns ``[K, 4]`` the split row blocks and their slots."""
    words = segments.words
    busy = _busy(segments)
    for column in range(SEGMENT_WORDS):
        used = busy & (column < _MEANINGFUL_WORDS)
        segments.require(used | (words[:, column] == 0), column, "a word that must be 0")
    if header.num_sections == 1:
        last_busy = np.logical_or.accumulate(busy[::-1])[::-1]
        segments.require(busy | ~last_busy, 3, "end head entry")
    # along the line: dealt pieces are written section by section
    along = busy.nonzero()[0]
    along = along[np.argsort(_order(words[along, 0:3]), kind="stable")]
    if along.size:
        _check_chain(segments, along, num_bn)
    return _check_cuts(segments, along, header)


def _check_chain(segments: _Items, along: np.ndarray, num_bn: int) -> None:
    """Every range starts where the one before it ends; the first one starts a head."""
    line = segments.words[along]
    before = np.vstack([line[:1, 0:3] * [1, 0, 1], line[:-1, 3:6]])
    for axis, name in enumerate(_POSITION):
        segments.require(line[:, axis] == before[:, axis], axis, f"start {name}", along)
    segments.require(line[-1:, 3] == num_bn, 3, "end head entry", along[-1:])


def _check_cuts(segments: _Items, along: np.ndarray, header: Header) -> np.ndarray:
    """Cut flags, row counts and slots fit the ranges; returns the split row blocks."""
    line = segments.words[along]
    flags = line[:, 8]
    segments.require((flags >= 0) & (flags <= CUT_AT_START + CUT_AT_END), 8, "cut flags", along)
    head_cut, tail_cut = flags & CUT_AT_START, (flags & CUT_AT_END) // CUT_AT_END
    cut_before = np.append(0, tail_cut)[: along.size]
    has_keys = (tail_cut == 0) | (line[:, 5] > 0)
    segments.require((head_cut == cut_before) & has_keys, 8, "cut flags", along)

    one_head = line[:, 0] == line[:, 3]
    rows = line[:, 4] - line[:, 1] + tail_cut
    fits = np.where(one_head, line[:, 7] == rows, line[:, 7] >= 1)
    segments.require(fits, 7, "number of row blocks", along)

    one_row = one_head & (line[:, 1] == line[:, 4])
    partials = head_cut + tail_cut - (head_cut & tail_cut & one_row)
    slots_after = partials.cumsum()
    segments.require(line[:, 6] == slots_after - partials, 6, "first slot", along)
    if partials.sum() != header.num_slots:
        raise _unfit(f"{header.num_slots} in word 9, the slots, and cuts for {partials.sum()}")
    # a row block is split where its first part ends
    opens = (tail_cut > 0) & ~((head_cut > 0) & one_row)
    first_slot = slots_after[opens] - 1
    slots = np.append(first_slot[1:], header.num_slots) - first_slot
    return np.column_stack([line[opens, 3], line[opens, 4], first_slot, slots])


def _check_task_ranges(values: np.ndarray, header: Header) -> None:
    """The vector cores share the task list without a gap."""
    index = values[header.vectors_offset : header.tasks_offset]
    used = 2 * header.num_aiv
    ranges = _Items("vector core", index[:used].reshape(-1, 2), header.vectors_offset)
    first, count = ranges.words.T
    ranges.require((count >= 0) & (first + count <= header.num_tasks), 1, "number of tasks")
    ranges.require(first == count.cumsum() - count, 0, "first task")
    last = np.array([header.num_aiv - 1])
    ranges.require((first + count)[last] == header.num_tasks, 1, "number of tasks", last)
    padding = _Items("padding", index[used:, None], header.vectors_offset + used)
    padding.require(padding.words[:, 0] == 0, 0, "a word that must be 0")


def _check_balanced_tasks(
    values: np.ndarray, header: Header, splits: np.ndarray, head_dim: int
) -> None:
    """Tasks combine the split row blocks in their order, every row and column once."""
    words = values[header.tasks_offset :].reshape(-1, TASK_WORDS)
    tasks = _Items("task", words, header.tasks_offset)
    first_row, rows, first_column, columns = words[:, 4:8].T
    is_first = (first_row == 0) & (first_column == 0)
    if int(is_first.sum()) != len(splits) or bool(header.is_fd) != bool(len(splits)):
        raise _unfit(
            f"tasks for {int(is_first.sum())} row blocks and {len(splits)} row blocks with cuts"
        )
    if not len(splits):
        tasks.require(np.zeros(len(words), dtype=bool), 0, "head entry")
        return
    owner = is_first.cumsum() - 1
    tasks.require(owner >= 0, 4, "first row")
    for column, name in enumerate(("head entry", "row block", "first slot", "number of slots")):
        tasks.require(words[:, column] == splits[owner, column], column, name)
    tasks.require((rows >= 1) & (first_row + rows <= header.block_q), 5, "number of rows")

    # a task goes on where the one before it ends: in its rows, or in the next columns
    row_before = np.append(0, (first_row + rows)[:-1])
    column_before = np.append(0, first_column[:-1])
    next_column = np.append(0, (first_column + columns)[:-1])
    tasks.require((first_row == 0) | (first_row == row_before), 4, "first row")
    expected = np.where(first_row > 0, column_before, np.where(is_first, 0, next_column))
    tasks.require(first_column == expected, 6, "first column")
    tasks.require((columns == head_dim) | (2 * columns == head_dim), 7, "number of columns")
    is_last = np.append(is_first[1:], True)
    tasks.require(~is_last | (first_column + columns == head_dim), 7, "number of columns")
    # all columns of a row block have as many rows
    ends = np.append(first_row[1:] == 0, True).nonzero()[0]
    row_ends = (first_row + rows)[ends]
    most = np.zeros(len(splits), dtype=np.int64)
    np.maximum.at(most, owner[ends], row_ends)
    tasks.require(row_ends == most[owner[ends]], 5, "number of rows", ends)


def _check_section_segments(segments: _Items, header: Header) -> None:
    """Ranges of a section follow each other, and so do sections."""
    words = segments.words
    busy = _busy(segments)
    along = busy.nonzero()[0]
    line = words[along]
    for axis, name in enumerate(_POSITION):
        segments.require(line[1:, axis] == line[:-1, 3 + axis], axis, f"start {name}", along[1:])
    most = max(header.num_slots // header.num_sections, 1)
    segments.require((words[:, 6] >= 0) & (words[:, 6] <= most), 6, "first slot")


def _check_section_tasks(values: np.ndarray, header: Header, limits: np.ndarray) -> None:
    """Combine segments lie in the problem and in the workspace."""
    words = values[header.vectors_offset :].reshape(-1, SEGMENT_WORDS)
    vectors = _Items("combine segment", words, header.vectors_offset)
    idle = words[:, 5] == 0
    most = header.num_slots // header.num_sections
    for column, limit, name in ((0, limits[0], "head entry"), (1, limits[1], "row block")):
        inside = (words[:, column] >= 0) & (words[:, column] < limit)
        vectors.require(idle | inside, column, name)
    vectors.require(idle | ((words[:, 2] >= 0) & (words[:, 2] < most)), 2, "first slot")
    slots = (words[:, 3] >= 2) & (words[:, 2] + words[:, 3] <= most)
    vectors.require(idle | slots, 3, "number of slots")
    vectors.require(idle | (words[:, 4] >= 0), 4, "first row")
    rows = (words[:, 5] >= 1) & (words[:, 4] + words[:, 5] <= header.block_q)
    vectors.require(idle | rows, 5, "number of rows")
