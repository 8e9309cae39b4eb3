"""Which rows a plan block holds, and how they are addressed in q and in the result."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fa_triton.planner.table import Header
    from fa_triton.problem import BatchProblem


# Rows that a batch-invariant call chooses its tiles for: no other sequence may change the choice.
INVARIANT_ROWS = 32


class RowKind(enum.Enum):
    """How the rows of a head unit follow each other.

    The kernels want rows that are affine in memory, so that every tile is a plain 2-D access:

    * ``ONE_HEAD``: the positions of one query head. For prefill, where they fill a tile.
    * ``HEADS``: the query heads of a group at one position. For decode.
    * ``PACKED``: all positions of a group, heads inner, in a packed copy of q. For short queries
      (speculative decoding) and for batches that mix prefill and decode.
    * ``HEAD_MAJOR``: all positions of a group, heads outer: BNSD under ``section_stream_k``.
    """

    ONE_HEAD = "one_head"
    HEADS = "heads"
    PACKED = "packed"
    HEAD_MAJOR = "head_major"


@dataclass(frozen=True)
class RowUnits:
    """Head units of one batch entry, as the kernels count them."""

    kind: RowKind
    num_units: int
    units_per_kv: int
    group: int

    @property
    def is_head_major(self) -> bool:
        """Whether the rows of a unit run through one head after the other."""
        return self.kind is RowKind.HEAD_MAJOR

    @property
    def kernel_group(self) -> int:
        """Rows per query position of a unit."""
        return 1 if self.kind is RowKind.ONE_HEAD else self.group


def plans_one_head(problem: BatchProblem, q_lens: np.ndarray, full_tile: int) -> bool:
    """Whether the balanced plan cuts each query head alone.

    So it does where there is nothing to merge, or where every sequence fills a tile without it;
    a batch that mixes long and short queries merges, as one position of one head wastes a tile. In
    a batch-invariant problem other sequences may not decide it.
    """
    if problem.group == 1 or problem.batch_invariant:
        return problem.group == 1
    present = q_lens[q_lens > 0]
    return (
        present.size > 0
        and int(present.min()) * problem.group > full_tile
        and int(present.min()) > 1
    )


def merged_rows(problem: BatchProblem, q_lens: np.ndarray) -> int:
    """Rows of the longest sequence's unit when the query heads of a group are merged."""
    return int(q_lens.max()) * problem.group


def row_units(problem: BatchProblem, header: Header) -> RowUnits:
    """Read off a plan's header how the kernels address its rows."""
    group = problem.group
    if group == 1 or header.one_head_rows:
        return RowUnits(RowKind.ONE_HEAD, problem.num_heads_q, group, 1)
    if header.longest_q <= 1:
        kind = RowKind.HEADS
    elif header.is_section_stream_k and problem.layout_q == "BNSD":
        kind = RowKind.HEAD_MAJOR
    else:
        kind = RowKind.PACKED
    # head-major tiles lie in one query head, so their tensors count query heads
    units_per_kv = group if kind is RowKind.HEAD_MAJOR else 1
    return RowUnits(kind, problem.num_heads_kv, units_per_kv, group)
