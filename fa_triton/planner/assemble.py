"""From cuts of the line of key blocks to the ranges, slots and tasks of a balanced plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.combine import CombineSchedule, SplitRows, schedule_combine
from fa_triton.planner.row_grid import RowGrid
from fa_triton.planner.schedule import BALANCED, CUT_AT_END, CUT_AT_START, Plan
from fa_triton.planner.work import AttnWork


@dataclass(frozen=True, eq=False)
class Ranges:
    """Ranges of key blocks, from ``cuts[starts]`` to ``cuts[ends]``.

    Attributes:
        cuts: ``[N, 4]`` sequence, head, row block of the flattened grid, key blocks before the
            cut; slots are numbered along them.
        starts: Where ranges start.
        ends: Where they end.
        segments: Whose they are: section*num_aic + core.
        num_sections: Sections.
        split: The row blocks with a cut inside.
        combine: Their combine tasks.
    """

    cuts: np.ndarray
    starts: slice
    ends: slice
    segments: slice | list[int]
    num_sections: int
    split: SplitRows
    combine: CombineSchedule

    @classmethod
    def along(cls, cuts: np.ndarray, grid: RowGrid, num_aiv: int, columns: int) -> Ranges:
        """One range from each cut to the next, in one section."""
        ranges = len(cuts) - 1
        split = split_rows(cuts, grid)
        return cls(
            cuts=cuts,
            starts=slice(0, ranges),
            ends=slice(1, ranges + 1),
            segments=slice(0, ranges),
            num_sections=1,
            split=split,
            combine=schedule_combine(split, num_aiv, columns),
        )


def split_rows(cuts: np.ndarray, grid: RowGrid) -> SplitRows:
    """Row blocks with a cut inside; slots are numbered along the line."""
    inside = cuts[cuts[:, 3] > 0]
    seq, head, row = inside[:, 0], inside[:, 1], inside[:, 2]
    is_first = np.ones(row.size, dtype=bool)
    is_first[1:] = (row[1:] != row[:-1]) | (head[1:] != head[:-1])
    first = is_first.nonzero()[0]
    slots = np.ones_like(first)
    slots[:-1] += first[1:] - first[:-1]
    slots[-1:] += row.size - first[-1:]
    seq, row = seq[first], row[first]
    places = np.empty((first.size, 4), dtype=np.int64)
    places[:, 0] = seq * grid.heads + head[first]
    places[:, 1] = row - grid.offsets[seq]
    places[:, 2] = slots.cumsum() - slots
    places[:, 3] = slots
    return SplitRows(places, grid.rows[row])


def assemble(
    work: AttnWork,
    grid: RowGrid,
    ranges: Ranges,
    *,
    num_aic: int,
    num_aiv: int,
    block_q: int,
    block_kv: int,
    one_head_rows: bool,
    batch_invariant: bool = False,
    shared_cores: int | None = None,
) -> Plan:
    """Write down ranges as a plan.

    Args:
        work: What was planned.
        grid: Its row blocks.
        ranges: The ranges.
        num_aic: Attention segments per section.
        num_aiv: Vector cores.
        block_q: Rows of a row block.
        block_kv: Keys of a key block.
        one_head_rows: Whether rows belong to one query head.
        batch_invariant: Whether the cuts of a sequence depend on nothing but the sequence.
        shared_cores: Cube cores that take the segments in turn; None: every segment of a section
            has a core of its own.
    """
    seq, head, row, block = ranges.cuts.T
    starts_of, ends_of = ranges.starts, ranges.ends
    # the end of the line is sequence B, behind the last row block
    m = row - grid.offsets[seq]
    positions = np.empty((len(seq), 3), dtype=np.int64)
    positions[:, 0] = seq * grid.heads + head
    positions[:, 1] = m
    positions[:, 2] = block
    if grid.first.size:
        positions[:, 2] += grid.first.take(row, mode="clip") * (seq < grid.batch_size)

    # row blocks before the cut, in the order the cores walk them
    head_rows = grid.offsets.take(seq + 1, mode="clip") - grid.offsets[seq]
    ordinal = grid.offsets[seq] * grid.heads + head * head_rows + m
    is_cut = (block > 0).astype(np.int64)
    head_cut, tail_cut = is_cut[starts_of], is_cut[ends_of]
    row_step = ordinal[ends_of] - ordinal[starts_of]
    # a row block cut at both ends is one partial
    partials = head_cut + tail_cut - (head_cut & tail_cut & (row_step == 0))

    segments = ranges.num_sections * num_aic
    starts = np.zeros((segments, 3), dtype=np.int64)
    ends = np.zeros((segments, 3), dtype=np.int64)
    first_slots, row_blocks, cut_flags = np.zeros((3, segments), dtype=np.int64)
    owners = ranges.segments
    starts[owners], ends[owners] = positions[starts_of], positions[ends_of]
    first_slots[owners] = partials.cumsum() - partials
    row_blocks[owners] = row_step + tail_cut
    cut_flags[owners] = head_cut * CUT_AT_START + tail_cut * CUT_AT_END
    return Plan(
        work=work,
        planner=BALANCED,
        num_aic=num_aic,
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
        num_sections=ranges.num_sections,
        is_fd=ranges.split.rows.size > 0,
        starts=starts,
        ends=ends,
        first_slots=first_slots,
        row_blocks=row_blocks,
        cuts=cut_flags,
        slots_per_section=int(ranges.split.places[:, 3].sum()),
        tasks=ranges.combine.tasks,
        task_ranges=ranges.combine.ranges,
        grid=grid,
        batch_invariant=batch_invariant,
        shared_cores=shared_cores,
    )
