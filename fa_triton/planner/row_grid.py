"""Row blocks of a batch: which key blocks each one sees and what they cost.

All heads of a sequence are alike, so the grid holds the row blocks of *one* head of every
sequence, flattened over the sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_triton.planner.cost import key_units, missing_units, row_units
from fa_triton.planner.work import MASK_CAUSAL, MASK_NONE, AttnWork

# orders of the rows of one head entry
POSITION_OUTER = "position_outer"  # merged group, row = position*g + head of the group
GROUP_OUTER = "group_outer"  # merged group, row = head of the group*sq + position
ONE_HEAD = "one_head"  # rows are the positions of one query head


@dataclass(frozen=True, eq=False)
class RowGrid:
    """Row blocks of one head per sequence, all arrays int64.

    Attributes:
        heads: Head entries per sequence; ``bn = b*heads + h``.
        offsets: ``[B+1]`` index of the first row block of each sequence.
        rows: ``[R]`` rows in the row block.
        first: ``[R]`` first visible key block; 0 where none is visible.
        blocks: ``[R]`` visible key blocks.
        norm: ``[R]`` units of a full key block.
        cost: ``[R]`` units of the whole row block.
    """

    heads: int
    offsets: np.ndarray
    rows: np.ndarray
    first: np.ndarray
    blocks: np.ndarray
    norm: np.ndarray
    cost: np.ndarray

    @property
    def batch_size(self) -> int:
        """Sequences."""
        return self.offsets.size - 1

    @property
    def num_bn(self) -> int:
        """Head entries in all."""
        return self.batch_size * self.heads

    @property
    def last(self) -> np.ndarray:
        """Units of the last visible block, ``[R]``; 0 where none is visible."""
        return self.cost - np.maximum(self.blocks - 1, 0) * self.norm

    def cost_offsets(self) -> np.ndarray:
        """Units before each row block of the flattened grid, ``[R+1]``."""
        sums = np.zeros(self.cost.size + 1, dtype=np.int64)
        self.cost.cumsum(out=sums[1:])
        return sums


def build_row_grid(work: AttnWork, block_q: int, block_kv: int, order: str) -> RowGrid:
    """Cut every sequence into row blocks and find the key blocks each one sees."""
    merged = 1 if order == ONE_HEAD else work.group
    q_rows = work.q_lens * merged
    longest = int(q_rows.max())
    sq, skv = work.q_lens, work.kv_lens
    if longest <= block_q and q_rows.all():
        # decode: one row block per sequence
        offsets = np.arange(work.batch_size + 1)
        low, rows = 0, q_rows
    else:
        row_blocks = -(-q_rows // block_q)
        offsets = np.zeros(work.batch_size + 1, dtype=np.int64)
        row_blocks.cumsum(out=offsets[1:])
        seq = np.arange(work.batch_size).repeat(row_blocks)
        low = (np.arange(offsets[-1]) - offsets[seq]) * block_q
        rows = np.minimum(q_rows[seq] - low, block_q)
        sq, skv = sq[seq], skv[seq]

    key_blocks = -(-skv // block_kv)
    # the one position of a query of one token sees all keys under a causal mask
    sees_all = work.mask_mode == MASK_NONE or (work.mask_mode == MASK_CAUSAL and longest <= merged)
    if sees_all:
        first, blocks = np.zeros_like(skv), key_blocks
    else:
        if order == GROUP_OUTER:
            first_pos, last_pos = _positions_group_outer(low, low + rows - 1, sq)
        else:
            first_pos, last_pos = low // merged, (low + rows - 1) // merged
        first, blocks = _visible_blocks(work, block_kv, first_pos, last_pos, sq, skv)

    of_rows = row_units(rows)
    norm = of_rows + key_units(block_kv)
    # keys that the last visible block lacks
    missing = key_blocks * block_kv - skv
    if not sees_all:
        missing *= (blocks > 0) & (first + blocks == key_blocks)
    cost = blocks * norm - missing_units(block_kv, missing)
    return RowGrid(
        heads=work.num_heads_q if order == ONE_HEAD else work.num_heads_kv,
        offsets=offsets,
        rows=rows,
        first=first,
        blocks=blocks,
        norm=norm,
        cost=cost,
    )


def _positions_group_outer(
    low: np.ndarray | int, high: np.ndarray, sq: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First and last position of a row block whose rows are ordered head by head.

    A block that spans heads is given positions 0..sq, one more than there are: the published
    planner counts so, and its plans are matched word by word.
    """
    one_head = low // sq == high // sq
    return np.where(one_head, low % sq, 0), np.where(one_head, high % sq, sq)


def _visible_blocks(
    work: AttnWork,
    block_kv: int,
    first_pos: np.ndarray | int,
    last_pos: np.ndarray,
    sq: np.ndarray,
    skv: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """First visible key block and number of visible key blocks per row block."""
    diagonal = skv - sq
    if work.mask_mode == MASK_CAUSAL:
        first_key = np.zeros_like(skv)
        last_key = last_pos + diagonal
    else:
        first_key = first_pos + diagonal - work.win_left if work.win_left >= 0 else 0 * skv
        last_key = last_pos + diagonal + work.win_right if work.win_right >= 0 else skv - 1
    seen = (first_key < skv) & (last_key >= 0) & (last_key >= first_key) & (skv > 0)
    first = np.maximum(first_key, 0) // block_kv
    end = np.minimum(last_key, skv - 1) // block_kv + 1
    return np.where(seen, first, 0), np.where(seen, end - first, 0)
