"""The split heuristic of FlashAttention 3 with its per-sequence dynamic split.

Of the split counts up to the number of cores, the smallest that fills the waves at least 85% as
well as the best one does is an upper bound; it is found for a batch of one, as a varlen launch does
not know its lengths. Every sequence then takes as many splits as bring its pieces near the share of
a core plus 10%. A persistent kernel deals the pieces: sequences with the longest pieces first, as
many heads together as fit into L2, and of each head the last rows first.
"""

from __future__ import annotations

import math

import numpy as np

from fa_triton.planner.work import MASK_NONE, MASK_WINDOW
from perf.planner_peers.items import Items, Problem, cut_into_chunks, makespan, next_free_core

GOOD_ENOUGH = 0.85
ALMOST_FULL = 0.8
SHARE_MARGIN = 1.1
# with so few key blocks nothing is split
FEW_BLOCKS = 4
MOST_SPLITS = 128
# a larger batch fills the cores without splits
MOST_SPLIT_SEQUENCES = 992
L2_BYTES = 50 * 2**20
# what the order of heads counts on, and heads that it takes together at most
ORDER_L2_BYTES = 8 * 2**20
MOST_HEADS_TOGETHER = 16
ELEMENT_BYTES = 2


def split_bound(
    row_blocks: int,
    cores: int,
    key_blocks: int,
    *,
    kv_head_bytes: int = 0,
    blocks_of_head: int = 1,
    is_masked: bool = True,
) -> int:
    """Return the largest split count that the heuristic allows.

    Args:
        row_blocks: Row blocks of all heads.
        cores: Cores.
        key_blocks: Key blocks of a row block.
        kv_head_bytes: Keys and values of a head.
        blocks_of_head: Row blocks of one head.
        is_masked: Whether a causal or window mask hides keys.
    """
    if row_blocks >= ALMOST_FULL * cores:
        reads_twice = blocks_of_head >= 2 * cores and not is_masked
        if kv_head_bytes > L2_BYTES and reads_twice:
            return min(-(-kv_head_bytes // L2_BYTES), MOST_SPLITS)
        return 1
    if key_blocks <= FEW_BLOCKS:
        return 1
    counts = range(1, min(MOST_SPLITS, cores, key_blocks) + 1)
    waves = [row_blocks * count / cores for count in counts]
    fills = [wave / math.ceil(wave) for wave in waves]
    return next(
        c for c, fill in zip(counts, fills, strict=True) if fill >= GOOD_ENOUGH * max(fills)
    )


def sequence_splits(problem: Problem, block_q: int) -> np.ndarray:
    """Splits of every sequence."""
    work, grid, cores = problem.work, problem.grid, problem.cores
    longest_q, longest_kv = int(work.q_lens.max()), int(work.kv_lens.max())
    blocks_of_head = max(-(-longest_q * work.group // block_q), 1)
    loaded = longest_kv
    if work.mask_mode == MASK_WINDOW and work.win_left >= 0 and work.win_right >= 0:
        loaded = min(loaded, work.win_left + work.win_right + 1 + block_q)
    bound = split_bound(
        grid.heads * blocks_of_head,
        cores,
        -(-loaded // problem.block_kv),
        kv_head_bytes=longest_kv * (work.head_dim + work.columns) * ELEMENT_BYTES,
        blocks_of_head=blocks_of_head,
        is_masked=work.mask_mode != MASK_NONE,
    )
    if work.batch_size > MOST_SPLIT_SEQUENCES:
        bound = 1
    key_blocks = -(-work.kv_lens // problem.block_kv)
    all_blocks = int((np.diff(grid.offsets) * key_blocks).sum())
    share = max(math.ceil(all_blocks * SHARE_MARGIN * grid.heads / cores), 1)
    return np.clip(-(-key_blocks // share), 1, bound)


def launch_order(items: Items, splits: np.ndarray, block_q: int) -> np.ndarray:
    """Order in which the persistent kernel takes the pieces."""
    problem = items.problem
    work, grid, block_kv = problem.work, problem.grid, problem.block_kv
    key_blocks = -(-work.kv_lens // block_kv)
    key_blocks = -(-key_blocks // splits)
    seq = problem.row_seq[items.row]
    place = np.arange(items.row.size)
    if work.mask_mode == MASK_NONE:
        return np.lexsort((place, -key_blocks[seq]))
    rank = np.zeros_like(seq)
    if work.mask_mode != MASK_WINDOW:
        keys_ahead = key_blocks * block_kv - np.diff(grid.offsets) * block_q
        rank = -keys_ahead[seq]
    block_bytes = block_kv * (work.head_dim + work.columns) * ELEMENT_BYTES
    fit = np.maximum(ORDER_L2_BYTES // block_bytes // np.maximum(key_blocks, 1), 1)
    together = np.minimum(2 ** np.log2(fit).astype(np.int64), MOST_HEADS_TOGETHER)
    return np.lexsort((place, -items.row, items.head // together[seq], seq, rank))


def fa3(problem: Problem) -> int:
    """Makespan with the splits of FlashAttention 3."""
    block_q = int(problem.grid.rows.max(initial=1))
    splits = sequence_splits(problem, block_q)
    blocks = np.maximum(-(-problem.grid.blocks // splits[problem.row_seq]), 1)
    low, _ = problem.visible
    items = cut_into_chunks(problem, low, blocks * problem.block_kv)
    return makespan(items.reordered(launch_order(items, splits, block_q)), next_free_core)
