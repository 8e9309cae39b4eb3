"""Bytes of a decode step, counted from its plan, against those that must be read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fa_triton.attention.tiles import integer_tile, kv_step
from fa_triton.planner import AttnWork, make_plan
from fa_triton.planner.schedule import Plan
from fa_triton.planner.table import encode
from fa_triton.tile_config import TileKey, choose_tile
from perf.decode_workloads import PAGE_SIZE, DecodeWorkload

# Cube and vector cores that plans are made for.
CORES = {"A2": (24, 48), "A3": (24, 48), "A5": (32, 64)}
_CACHE_BYTES = {"bf16": 2, "int8": 1}
_ROW_BYTES, _F32, _WORD = 2, 4, 4


@dataclass(frozen=True)
class StepBytes:
    """Bytes of one decode step of one layer.

    Attributes:
        keys: Keys and values that segments load.
        rows: Queries and results.
        partials: Rows of cut row blocks, written by one phase and read by the other.
        scales: Scales of an int8 cache.
        table: The plan, and page ids.
        compulsory: The cache once, queries, results and scales once.
    """

    keys: int
    rows: int
    partials: int
    scales: int
    table: int
    compulsory: int

    @property
    def moved(self) -> int:
        """All of it."""
        return self.keys + self.rows + self.partials + self.scales + self.table

    @property
    def ratio(self) -> float:
        """Moved over compulsory."""
        return self.moved / self.compulsory


def step_bytes(workload: DecodeWorkload, device: str) -> StepBytes:
    """Count one step with the plan and tiles of a device."""
    w = workload
    plan = _plan(w, device)
    visits = list(_visits(plan, w))
    keys = sum(visit.keys for visit in visits)
    element, row = _CACHE_BYTES[w.cache], _ROW_BYTES * w.head_dim * w.group
    heads = w.batch_size * w.num_heads_kv
    cache_row, scale_row = 2 * w.head_dim * element, 2 * _F32 * w.head_dim
    has_scales = w.cache == "int8"
    page_ids = sum(-(-visit.keys // PAGE_SIZE) for visit in visits) if w.is_paged else 0
    return StepBytes(
        keys=keys * cache_row,
        rows=len(visits) * row + heads * row,
        partials=_partials(plan, w) if plan.is_fd else 0,
        scales=len(visits) * scale_row if has_scales else 0,
        table=_WORD * (encode(plan).size + page_ids),
        compulsory=heads * (w.kv_len * cache_row + 2 * row)
        + (w.num_heads_kv * scale_row if has_scales else 0),
    )


def _partials(plan: Plan, w: DecodeWorkload) -> int:
    """Rows that cut row blocks leave, with maximum and sum; tasks read rows and columns of them."""
    written = plan.num_slots * w.group * (w.head_dim + 2)
    slots, first_row, rows, columns = plan.tasks[:, [3, 4, 5, 7]].T
    rows = np.clip(w.group - first_row, 0, rows)
    return _F32 * (written + int((slots * rows * (columns + 2)).sum()))


@dataclass(frozen=True)
class _Visit:
    """Keys of one kv head of one sequence that one segment takes."""

    head: int
    keys: int


def _visits(plan: Plan, w: DecodeWorkload) -> Iterator[_Visit]:
    """One row block per kv head, so a position is a number of key blocks."""
    blocks = -(-w.kv_len // plan.block_kv)
    for start, end in zip(_places(plan.starts, blocks), _places(plan.ends, blocks), strict=True):
        here = start
        while here < end:
            head, first = divmod(here, blocks)
            last = min(blocks, first + end - here)
            yield _Visit(head, min(w.kv_len, last * plan.block_kv) - first * plan.block_kv)
            here += last - first


def _places(positions: np.ndarray, blocks: int) -> list[int]:
    """Key blocks before each position (head, row block, key block)."""
    return ((positions[:, 0] + positions[:, 1]) * blocks + positions[:, 2]).tolist()


def _plan(w: DecodeWorkload, device: str) -> Plan:
    tile = choose_tile(TileKey(device, w.head_dim, "16bit", "none", w.group))
    if w.cache == "int8":
        tile = integer_tile(tile, w.head_dim, 0)
    block_kv = tile.block_kv
    if w.is_paged:
        step = kv_step(PAGE_SIZE, block_kv)
        block_kv = step * max(1, block_kv // step)
    num_aic, num_aiv = CORES[device]
    batch = w.batch_size
    work = AttnWork(
        np.ones(batch, np.int64), np.full(batch, w.kv_len), w.num_heads_q, w.num_heads_kv,
        w.head_dim,
    )  # fmt: skip
    return make_plan(
        "balanced", work, num_aic=num_aic, num_aiv=num_aiv, block_q=tile.block_q, block_kv=block_kv
    )
