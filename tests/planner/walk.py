"""What the kernels do with a table, in plain Python: the oracle of the planner tests.

A core starts at its first position and walks row block after row block: ``m+1``, then the next
``bn``. It knows the lengths, so it can tell how many row blocks a head has and which key blocks a
row block sees; the table only adds where the first and the last row block are cut.

* balanced: word 7 says how many row blocks, bits 0 and 1 of word 8 say which ends are cut.
* section_stream_k: the core walks until the end position; an end is cut where its key block lies
  behind the start of its row block, as the planner counts that start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fa_triton.planner import AttnWork
from fa_triton.planner.row_grid import RowGrid
from fa_triton.planner.schedule import CUT_AT_END, CUT_AT_START, Plan
from fa_triton.planner.table import decode_segments, encode, read_header


@dataclass(frozen=True)
class Visit:
    """One row block on one core; ``slot`` is None where the core finishes the row block alone."""

    section: int
    core: int
    bn: int
    m: int
    blocks: tuple[int, ...]
    slot: int | None


@dataclass(frozen=True)
class Geometry:
    """Row blocks of the heads, straight from the definition of the masks."""

    work: AttnWork
    block_q: int
    block_kv: int
    one_head_rows: bool
    group_outer: bool

    @property
    def heads(self) -> int:
        return self.work.num_heads_q if self.one_head_rows else self.work.num_heads_kv

    def head_rows(self, seq: int) -> int:
        return int(self.work.q_lens[seq]) * (1 if self.one_head_rows else self.work.group)

    def row_blocks(self, bn: int) -> int:
        return -(-self.head_rows(bn // self.heads) // self.block_q)

    def rows(self, bn: int, m: int) -> int:
        return min(self.head_rows(bn // self.heads) - m * self.block_q, self.block_q)

    def positions(self, bn: int, m: int) -> np.ndarray:
        rows = m * self.block_q + np.arange(self.rows(bn, m))
        if self.one_head_rows:
            return rows
        return (
            rows % self.work.q_lens[bn // self.heads]
            if self.group_outer
            else (rows // self.work.group)
        )

    def visible(self, bn: int, m: int) -> tuple[int, ...]:
        """Key blocks that hold a key which some row of the row block sees."""
        seq = bn // self.heads
        sq, skv = int(self.work.q_lens[seq]), int(self.work.kv_lens[seq])
        key = np.arange(skv)
        diagonal = self.positions(bn, m)[:, None] + skv - sq
        seen = np.ones((self.rows(bn, m), skv), dtype=bool)
        if self.work.mask_mode == 3:
            seen = key <= diagonal
        elif self.work.mask_mode == 4:
            if self.work.win_left >= 0:
                seen = seen & (key >= diagonal - self.work.win_left)
            if self.work.win_right >= 0:
                seen = seen & (key <= diagonal + self.work.win_right)
        seen_blocks = {int(k) // self.block_kv for k in np.flatnonzero(seen.any(axis=0))}
        # a window hides no block between two that it shows
        return tuple(range(min(seen_blocks), max(seen_blocks) + 1)) if seen_blocks else ()


def geometry(plan: Plan) -> Geometry:
    return Geometry(
        work=plan.work,
        block_q=plan.block_q,
        block_kv=plan.block_kv,
        one_head_rows=plan.one_head_rows,
        group_outer=plan.planner == "section_stream_k" and plan.work.layout_q == "BNSD",
    )


def walk(plan: Plan) -> Iterator[Visit]:
    """Visit row blocks as the program of every segment of the encoded table does."""
    words = encode(plan)
    header = read_header(words)
    segments, _ = decode_segments(words)
    shape = geometry(plan)
    for pid, segment in enumerate(segments.tolist()):
        section, core = divmod(pid, header.num_aic)
        slot = segment[6] + section * header.slots_per_section
        pieces = (
            _section_pieces(segment, shape, plan.grid)
            if header.is_section_stream_k
            else _balanced_pieces(segment, shape)
        )
        for bn, m, low, high in pieces:
            cut = low is not None or high is not None
            blocks = tuple(
                s2
                for s2 in shape.visible(bn, m)
                if (low is None or s2 >= low) and (high is None or s2 < high)
            )
            yield Visit(section, core, bn, m, blocks, slot if cut else None)
            slot += cut


Piece = tuple[int, int, int | None, int | None]


def _balanced_pieces(segment: list[int], shape: Geometry) -> Iterator[Piece]:
    bn, m, first_s2, _, _, last_s2, _, count, cuts = segment[:9]
    for index in range(count):
        while m >= shape.row_blocks(bn):
            bn, m = bn + 1, 0
        low = first_s2 if index == 0 and cuts & CUT_AT_START else None
        high = last_s2 if index == count - 1 and cuts & CUT_AT_END else None
        yield bn, m, low, high
        m += 1


def _section_pieces(segment: list[int], shape: Geometry, grid: RowGrid) -> Iterator[Piece]:
    start, end = tuple(segment[0:3]), tuple(segment[3:6])
    bn, m = start[:2]
    while (bn, m) <= end[:2] and bn < grid.num_bn:
        if m >= shape.row_blocks(bn):
            bn, m = bn + 1, 0
            continue
        row_start = int(grid.first[grid.offsets[bn // shape.heads] + m])
        low = start[2] if (bn, m) == start[:2] and start[2] > row_start else None
        high = end[2] if (bn, m) == end[:2] else None
        if high is not None and high <= row_start:
            return
        yield bn, m, low, high
        m += 1


@dataclass(frozen=True)
class KeyVisit:
    """A row block with the keys that a program attends, as the device finds them."""

    bn: int
    m: int
    keys: range
    slot: int | None


def walk_actual(plan: Plan, actual: AttnWork) -> Iterator[KeyVisit]:
    """Walk a balanced table as the kernels do when the device holds shorter lengths.

    They go by the positions and the cut flags of a segment: a head ends where its actual rows end,
    and a row block that is not there any more leaves its slot empty.
    """
    words = encode(plan)
    header = read_header(words)
    segments, _ = decode_segments(words)
    shape = replace(geometry(plan), work=actual, block_kv=1)
    for segment in segments.tolist():
        bn, m, first_s2, bn_last, m_last, last_s2, slot, _, flags = segment[:9]
        first = (bn, m)
        while (bn, m) < (bn_last, m_last + (flags >> 1)):
            is_first = bool(flags & CUT_AT_START) and (bn, m) == first
            is_last = bool(flags & CUT_AT_END) and (bn, m) == (bn_last, m_last)
            if m < shape.row_blocks(bn):
                seen = shape.visible(bn, m)
                low = max([*seen[:1], *[first_s2 * header.block_kv] * is_first], default=0)
                high = min([*[seen[-1] + 1 if seen else 0], *[last_s2 * header.block_kv] * is_last])
                cut = is_first or is_last
                yield KeyVisit(bn, m, range(low, high), slot if cut else None)
            slot += is_first or is_last
            bn, m = (bn, m + 1) if m + 1 < shape.row_blocks(bn) else (bn + 1, 0)
