"""The SectionStreamK planner of CANN's ``flash_attn_metadata``, word for word.

The batch is walked head by head and cut into sections whose queries, keys, values and outputs
fit the L2 cache. In each section a greedy pass hands every core its share of the remaining
cost: whole heads first, then whole row blocks, then (FlashDecode) single key blocks. Where cores
cut a row block, its partial rows go to slots and combine tasks merge them.

What recorded plans say where the description leaves a choice:
    * Slot numbers restart in every section, and are 0 where FlashDecode is off.
    * With more than one section FlashDecode is on, even where nothing is split.
    * The first core of a section starts at key block 0, whatever its first row block sees; every
      other start is the end of the core before, at the first key block its row block sees.
    * Costs are whole units; halves are rounded down.
    * A head whose rows see nothing is passed over whatever the load.
    * Block sizes are in the header even where there is nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fa_triton.planner.cost import block_units
from fa_triton.planner.row_grid import GROUP_OUTER, POSITION_OUTER, RowGrid, build_row_grid
from fa_triton.planner.schedule import (
    SECTION_STREAM_K,
    TASK_WORDS,
    Plan,
    check_block_sizes,
    check_core_counts,
)
from fa_triton.planner.section_line import SectionLine
from fa_triton.planner.work import MASK_NONE, MASK_WINDOW, AttnWork

L2_BYTES = 96 * 2**20
ELEMENT_BYTES = 2
# FlashDecode must win by this many blocks, and needs rows of more than so many blocks
FD_TOLERANCE_BLOCKS = 10
FD_LEAST_BLOCKS = 3

_UNLIMITED_WINDOW = 2**32 - 1
_UNKNOWN_LENGTH = 2**31 - 1

Position = tuple[int, int, int]


def plan(
    work: AttnWork,
    *,
    num_aic: int,
    num_aiv: int,
    block_q: int | None = None,
    block_kv: int | None = None,
) -> Plan:
    """Plan a batch as CANN does.

    Args:
        work: Lengths, heads and mask.
        num_aic: Cube cores.
        num_aiv: Vector cores, at least as many.
        block_q: Rows of a row block instead of the algorithm's own choice.
        block_kv: Keys of a key block, likewise.

    Returns:
        The plan.

    Raises:
        ValueError: Core counts or block sizes are not usable.
    """
    check_core_counts(num_aic, num_aiv)
    check_block_sizes(block_q, block_kv)
    if num_aiv < num_aic:
        raise ValueError(
            "`num_aiv` must be at least `num_aic` for section_stream_k, "
            f"got {num_aiv} and {num_aic}"
        )
    base_q, base_kv = base_sizes(work, num_aic, num_aiv)
    block_q, block_kv = block_q or base_q, block_kv or base_kv
    order = GROUP_OUTER if work.layout_q == "BNSD" else POSITION_OUTER
    grid = build_row_grid(work, block_q, block_kv, order)
    line = SectionLine(grid)
    bounds = _section_bounds(work, block_q, num_aic) if line.total else [0, grid.num_bn]
    sections = [
        _plan_section(line, begin, end, num_aic, block_q, block_kv, always_fd=len(bounds) > 2)
        for begin, end in pairwise(bounds)
    ]
    return _assemble(work, grid, sections, bounds, num_aic, num_aiv, block_q, block_kv)


def base_sizes(work: AttnWork, num_aic: int, num_aiv: int) -> tuple[int, int]:
    """Rows and keys of a block as the algorithm chooses them from the call's arguments."""
    check_core_counts(num_aic, num_aiv)
    max_q = work.max_seqlen_q if work.max_seqlen_q >= 0 else _UNKNOWN_LENGTH
    max_kv = work.max_seqlen_kv if work.max_seqlen_kv >= 0 else _UNKNOWN_LENGTH
    if work.head_dim <= 128:
        left = work.win_left if work.win_left >= 0 else _UNLIMITED_WINDOW
        right = work.win_right if work.win_right >= 0 else _UNLIMITED_WINDOW
        if work.mask_mode == MASK_NONE:
            left = min(left, 0)
        elif work.mask_mode == MASK_WINDOW:
            right = min(right, 0)
        wide = max_q <= 64 and max_kv > 128 and left + right > 128
    else:
        wide = work.group * max_q < 64
    rows, keys = (32, 256) if wide else (64, 128)
    return rows * max(num_aiv // num_aic, 1), keys


def _section_bounds(work: AttnWork, block_q: int, num_aic: int) -> list[int]:
    """Cut the heads into sections that fit the L2 cache; first, inner and last bounds."""
    heads = work.num_heads_kv
    tokens = work.q_lens + work.kv_lens
    seq_bytes = tokens * (work.head_dim * ELEMENT_BYTES * 2)
    end = work.batch_size * heads
    if (work.q_lens * work.group).max() <= block_q or seq_bytes.max() <= L2_BYTES // num_aic:
        return [0, end]
    sums = np.concatenate(([0], np.cumsum(np.repeat(seq_bytes, heads))))
    bounds = [0]
    while True:
        stop = int(np.searchsorted(sums, sums[bounds[-1]] + L2_BYTES, side="right")) - 1
        if stop < end and sums[stop] == sums[bounds[-1]]:
            # a head larger than the cache is a section of its own
            stop += 1
        if stop >= end:
            return [*bounds, end]
        bounds.append(stop)


@dataclass(frozen=True)
class _SplitRow:
    """A row block that several cores share."""

    bn: int
    m: int
    first_slot: int
    slots: int
    rows: int


@dataclass(frozen=True)
class _Assignment:
    """Ranges of the cores of one section."""

    ends: list[Position]
    first_slots: list[int]
    split_rows: list[_SplitRow]
    slots: int
    max_cost: int


def _plan_section(
    line: SectionLine,
    begin: int,
    end: int,
    num_aic: int,
    block_q: int,
    block_kv: int,
    *,
    always_fd: bool,
) -> tuple[_Assignment, bool]:
    """Assign one section; the second result says whether FlashDecode is on."""
    if line.bn_sums[end] == line.bn_sums[begin]:
        return _Assignment([(end, 0, 0)], [0], [], 0, 0), always_fd
    cores = min(num_aic, int(line.bn_blocks[begin:end].sum()))
    with_fd = _Greedy(line, begin, end, split=True).run(cores)
    if always_fd:
        return with_fd, True
    without_fd = _Greedy(line, begin, end, split=False).run(cores)
    block = block_units(block_q, block_kv)
    use_fd = (
        without_fd.max_cost > FD_LEAST_BLOCKS * block
        and without_fd.max_cost - FD_TOLERANCE_BLOCKS * block > with_fd.max_cost
    )
    return (with_fd, True) if use_fd else (without_fd, False)


class _Greedy:
    """One greedy pass over a section; the state is the position and what is left around it."""

    def __init__(self, line: SectionLine, begin: int, end: int, *, split: bool) -> None:
        self.line = line
        self.end = end
        self.split = split
        self.unassigned = int(line.bn_sums[end] - line.bn_sums[begin])
        self._enter_bn(begin)

    def _enter_bn(self, bn: int) -> None:
        self.bn = bn
        if bn >= self.end:
            self.m = self.s2 = self.row_rest = self.bn_rest = 0
            return
        self.bn_rest = int(self.line.bn_cost[bn])
        seq = bn // self.line.num_heads
        if self.line.grid.offsets[seq] == self.line.grid.offsets[seq + 1]:
            self.m = self.s2 = self.row_rest = 0
        else:
            self._enter_row(0)

    def _enter_row(self, m: int) -> None:
        row = self.line.row_index(self.bn, m)
        self.m = m
        self.s2 = int(self.line.grid.first[row])
        self.row_rest = int(self.line.grid.cost[row])

    @property
    def finished(self) -> bool:
        return self.bn >= self.end

    @property
    def position(self) -> Position:
        return (self.bn, self.m, self.s2)

    def run(self, cores: int) -> _Assignment:
        ends: list[Position] = []
        first_slots: list[int] = []
        split_rows: list[_SplitRow] = []
        max_cost = used_slots = 0
        pieces = 1
        for core in range(cores):
            if self.unassigned <= 0 or self.finished:
                break
            previous = self.position
            load = self._fill_core(self.unassigned // (cores - core))
            ends.append(self.position)
            first_slots.append(used_slots + pieces - 1)
            max_cost = max(max_cost, load)
            self.unassigned -= load
            if not self.split:
                continue
            if core > 0 and pieces > 1 and self.position[:2] != previous[:2]:
                split_rows.append(self._split_row(previous, used_slots, pieces))
                used_slots += pieces
                pieces = 1
            if self._inside_row():
                pieces += 1
        return _Assignment(ends, first_slots, split_rows, used_slots, max_cost)

    def _fill_core(self, share: int) -> int:
        """Take heads, row blocks, then key blocks up to about ``share`` units; returns the load."""
        limit = max(share, self._block_cost() if self.split else self.row_rest)
        load = self._take_heads(limit)
        if self.finished:
            return load
        load += self._take_rows(limit, load)
        if self.split:
            load += self._take_blocks(limit, load)
        return load

    def _block_cost(self) -> int:
        """Cost of the next key block as the algorithm counts it."""
        if self.finished:
            return 0
        seq = self.bn // self.line.num_heads
        if self.line.grid.offsets[seq] == self.line.grid.offsets[seq + 1]:
            return 0
        row = self.line.row_index(self.bn, self.m)
        on_last = self.s2 + 1 >= self.line.grid.first[row] + self.line.grid.blocks[row]
        return int(self.line.last[row] if on_last else self.line.grid.norm[row])

    def _take_heads(self, limit: int) -> int:
        load = 0
        if self.bn_rest > 0:
            if limit + int(self.line.bn_last[self.bn]) // 2 < self.bn_rest:
                return 0
            load = self.bn_rest
            self._enter_bn(self.bn + 1)
        if self.finished:
            return load
        stop = min(self.line.whole_bns(self.bn, limit - load), self.end)
        if stop > self.bn:
            load += int(self.line.bn_sums[stop] - self.line.bn_sums[self.bn])
            self._enter_bn(stop)
        return load

    def _take_rows(self, limit: int, load: int) -> int:
        grid, sums = self.line.grid, self.line.row_sums
        row = self.line.row_index(self.bn, self.m)
        if limit + int(self.line.last[row]) // 2 < load + self.row_rest:
            return 0
        taken = self.row_rest
        following = int(self.line.next_row[row + 1])
        if load + taken <= limit:
            stop = self.line.whole_rows(following, limit - load - taken)
        else:
            stop = following
        taken += int(sums[stop] - sums[following])
        self.bn_rest -= taken
        self._enter_row(stop - int(grid.offsets[self.bn // self.line.num_heads]))
        return taken

    def _take_blocks(self, limit: int, load: int) -> int:
        cost = self._block_cost()
        if cost == 0:
            return 0
        blocks = max((limit + cost // 2 - load) // cost, 0)
        self.s2 += blocks
        self.row_rest -= blocks * cost
        self.bn_rest -= blocks * cost
        return blocks * cost

    def _inside_row(self) -> bool:
        if self.finished:
            return False
        row = self.line.row_index(self.bn, self.m)
        return self.s2 > self.line.grid.first[row]

    def _split_row(self, position: Position, first_slot: int, pieces: int) -> _SplitRow:
        bn, m, _ = position
        rows = int(self.line.grid.rows[self.line.row_index(bn, m)])
        return _SplitRow(bn, m, first_slot, pieces, rows)


def _combine_tasks(split_rows: list[_SplitRow], num_aiv: int, columns: int) -> list[list[int]]:
    """Cut the split rows of a section into one task per vector core."""
    if not split_rows:
        return []
    share = -(-sum(row.slots * row.rows for row in split_rows) // num_aiv)
    spare = num_aiv - len(split_rows)
    tasks = []
    for row in split_rows:
        pieces = max(1, row.slots * row.rows // share)
        piece_rows = -(-row.rows // pieces)
        pieces = min(-(-row.rows // piece_rows), spare + 1)
        spare -= pieces - 1
        for piece in range(pieces):
            first = piece * piece_rows
            count = row.rows - first if piece == pieces - 1 else piece_rows
            tasks.append([row.bn, row.m, row.first_slot, row.slots, first, count, 0, columns])
    return tasks


def _assemble(
    work: AttnWork,
    grid: RowGrid,
    sections: list[tuple[_Assignment, bool]],
    bounds: list[int],
    num_aic: int,
    num_aiv: int,
    block_q: int,
    block_kv: int,
) -> Plan:
    line_starts = np.zeros((len(sections), num_aic, 3), dtype=np.int64)
    line_ends = np.zeros_like(line_starts)
    first_slots = np.zeros((len(sections), num_aic), dtype=np.int64)
    task_ranges = np.zeros((len(sections), num_aiv, 2), dtype=np.int64)
    tasks: list[list[int]] = []
    for index, (assignment, is_fd) in enumerate(sections):
        used = len(assignment.ends)
        line_starts[index, 0] = (bounds[index], 0, 0)
        line_ends[index, :used] = assignment.ends
        line_starts[index, 1:used] = line_ends[index, : used - 1]
        if not is_fd:
            continue
        first_slots[index, :used] = assignment.first_slots
        section_tasks = _combine_tasks(assignment.split_rows, num_aiv, work.columns)
        for vector in range(len(section_tasks)):
            task_ranges[index, vector] = (len(tasks) + vector, 1)
        tasks += section_tasks
    return Plan(
        work=work,
        planner=SECTION_STREAM_K,
        num_aic=num_aic,
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=False,
        num_sections=len(sections),
        is_fd=any(is_fd for _, is_fd in sections),
        starts=line_starts.reshape(-1, 3),
        ends=line_ends.reshape(-1, 3),
        first_slots=first_slots.reshape(-1),
        row_blocks=np.zeros(first_slots.size, dtype=np.int64),
        cuts=np.zeros(first_slots.size, dtype=np.int64),
        slots_per_section=max(a.slots for a, is_fd in sections),
        tasks=np.array(tasks, dtype=np.int64).reshape(-1, TASK_WORDS),
        task_ranges=task_ranges.reshape(-1, 2),
        grid=grid,
    )
