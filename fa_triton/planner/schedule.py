"""The plan: what both planners return and everything else derives from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.row_grid import RowGrid
from fa_triton.planner.work import AttnWork

SECTION_STREAM_K = "section_stream_k"
BALANCED = "balanced"

# columns of `Plan.tasks`
TASK_WORDS = 8

# bits of `Plan.cuts`
CUT_AT_START = 1
CUT_AT_END = 2


@dataclass(frozen=True, eq=False)
class Plan:
    """Ranges of key blocks per core and combine tasks per vector core.

    A position is (bn, m, s2): head entry, row block, key block. Ranges are half-open and ordered
    lexicographically. All arrays are int64; a core without work has an empty range.

    Attributes:
        work: What was planned.
        planner: ``"section_stream_k"`` or ``"balanced"``.
        num_aic: Segments per section: one per cube core, or one per program.
        num_aiv: Vector cores per section.
        block_q: Rows M of a row block.
        block_kv: Keys S2 of a key block.
        one_head_rows: ``bn = b*Nq + n`` and rows of one query head; else ``bn = b*Nkv + n2`` and
            rows merged over the group.
        num_sections: Sections: every core has one range in each. balanced: more than one only
            where whole row blocks are dealt, which needs no combine phase.
        is_fd: Whether the combine phase runs.
        starts: ``[sections*num_aic, 3]`` first position of every core.
        ends: ``[sections*num_aic, 3]`` position after the last one.
        first_slots: ``[sections*num_aic]`` slot of a core's first partial row, within its section.
        row_blocks: ``[sections*num_aic]`` row blocks a core visits (balanced only).
        cuts: ``[sections*num_aic]`` CUT_AT_START | CUT_AT_END (balanced only).
        slots_per_section: Partial slots of the section that has most.
        tasks: ``[tasks, 8]`` bn, m, first slot, slots, first row, rows, first column, columns.
        task_ranges: ``[sections*num_aiv, 2]`` first task and number of tasks per vector core;
            balanced: ``[num_aiv, 2]``.
        grid: The row blocks that were planned.
        batch_invariant: Whether the cuts of a sequence depend on nothing but the sequence.
        shared_cores: Cube cores that take the segments, programs then, in turn; None: every
            segment of a section has a core of its own.
    """

    work: AttnWork
    planner: str
    num_aic: int
    num_aiv: int
    block_q: int
    block_kv: int
    one_head_rows: bool
    num_sections: int
    is_fd: bool
    starts: np.ndarray
    ends: np.ndarray
    first_slots: np.ndarray
    row_blocks: np.ndarray
    cuts: np.ndarray
    slots_per_section: int
    tasks: np.ndarray
    task_ranges: np.ndarray
    grid: RowGrid
    batch_invariant: bool = False
    shared_cores: int | None = None

    @property
    def num_slots(self) -> int:
        """Workspace slots of the whole table."""
        return self.num_sections * self.slots_per_section

    @property
    def num_tasks(self) -> int:
        """Combine tasks of the whole table."""
        return len(self.tasks)


def check_core_counts(num_aic: int, num_aiv: int) -> None:
    """Refuse core counts no table can be made for."""
    if num_aic < 1 or num_aiv < 1:
        raise ValueError(f"`num_aic` and `num_aiv` must be positive, got {num_aic} and {num_aiv}")


def check_block_sizes(block_q: int | None, block_kv: int | None) -> None:
    """Refuse block sizes that are not positive; None means the planner's choice."""
    for name, size in (("block_q", block_q), ("block_kv", block_kv)):
        if size is not None and size < 1:
            raise ValueError(f"`{name}` must be positive, got {size}")
