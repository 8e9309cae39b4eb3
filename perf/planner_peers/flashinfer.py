"""FlashInfer's plan: one chunk size for all keys, found by bisection, and a min-heap of cores.

The chunk is the smallest that gives no more programs than cores; where whole row blocks are already
as many, nothing is split. A batch whose chunks cut anything sends all its rows through the combine
phase. Programs go, longest keys first, to the core with the least work so far, which counts two for
every row of a tile and one for every key.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np

from perf.planner_peers.items import Items, Problem, cut_into_chunks, makespan

PAGE = 16
LEAST_CHUNK = 128
ROW_WEIGHT = 2


def chunk_keys(problem: Problem) -> int | None:
    """Keys per chunk, None where no sequence is split."""
    work, grid = problem.work, problem.grid
    row_blocks = np.diff(grid.offsets)
    keys = work.kv_lens
    if work.win_left >= 0:
        keys = np.minimum(keys, work.win_left + int(grid.rows.max(initial=1)))
    pages = np.maximum(-(-keys // PAGE), 1)
    least, most = max(LEAST_CHUNK // PAGE, 1), int(pages.max())
    is_decode = bool((work.q_lens == 1).all())
    if is_decode and work.batch_size * grid.heads >= problem.cores:
        return None
    while least < most:
        middle = (least + most) // 2
        if int((row_blocks * -(-pages // middle)).sum()) * grid.heads > problem.cores:
            least = middle + 1
        else:
            most = middle
    return least * PAGE if least < int(pages.max()) else None


def least_loaded_core(items: Items) -> np.ndarray:
    """Deal the pieces, longest first, by FlashInfer's estimate of their cost."""
    grid = items.problem.grid
    keys = items.high - items.low
    tile = int(grid.rows.max(initial=1))
    heap = [(0, core) for core in range(items.problem.cores)]
    loads = np.zeros(items.problem.cores, dtype=np.int64)
    cycles = items.cycles
    for index in np.argsort(-keys, kind="stable").tolist():
        estimate, core = heap[0]
        loads[core] += cycles[index]
        heapq.heapreplace(heap, (estimate + ROW_WEIGHT * tile + int(keys[index]), core))
    return loads


def flashinfer(problem: Problem) -> int:
    """Makespan with FlashInfer's chunks."""
    low, high = problem.visible
    chunk = chunk_keys(problem)
    if chunk is None:
        items = cut_into_chunks(problem, low, np.maximum(high - low, 1))
    else:
        # without a window chunks count from key 0, with one from the first visible key
        items = cut_into_chunks(problem, low, np.full_like(low, chunk))
        items = replace(items, is_partial=np.ones_like(items.is_partial))
    return makespan(items, least_loaded_core)
