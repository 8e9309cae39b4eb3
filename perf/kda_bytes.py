"""Bytes that each phase moves between memory and cores, counted exactly from its tiles.

Counted for one whole chunk of one value head whose queries and keys are its own (H = HV), with
fp32 gates and beta and 16-bit rows. What a phase must move is each of its operands once; it moves
more where a tile is loaded for several others. Chunk tables and states before and after a sequence
are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fa_triton.delta_rule.tiles import SCORE_ROWS, ChunkTileKey, ChunkTiles, choose_chunk_tiles
from fa_triton.delta_rule.variants import padded
from perf.kda_workloads import KdaWorkload

_WIDE, _NARROW = 4, 2


@dataclass(frozen=True)
class PhaseBytes:
    """Bytes of one phase per token and value head.

    Attributes:
        phase: Its name; ``operator`` for inputs and result of all phases together.
        moved: Loaded and stored.
        compulsory: Every operand once.
    """

    phase: str
    moved: float
    compulsory: float


def phase_bytes(workload: KdaWorkload, device: str) -> list[PhaseBytes]:
    """Count all phases with the tiles of a device, then their sum beside the whole operator's."""
    key = ChunkTileKey(
        device, padded(workload.key_dim), padded(workload.value_dim), workload.chunk_size
    )
    chunk = workload.chunk_size
    phases = [
        PhaseBytes(name, moved / chunk, least / chunk)
        for name, moved, least in _phases(workload, choose_chunk_tiles(key))
    ]
    k, v = workload.key_dim, workload.value_dim
    least = _NARROW * (2 * k + 2 * v) + _WIDE * (k + 1)
    return [*phases, PhaseBytes("operator", sum(phase.moved for phase in phases), least)]


def _phases(w: KdaWorkload, tiles: ChunkTiles) -> Iterator[tuple[str, float, float]]:
    """Name, moved and compulsory bytes of each phase of one chunk."""
    chunk, k, v = w.chunk_size, w.key_dim, w.value_dim
    wide_k, narrow_k, narrow_v = _WIDE * chunk * k, _NARROW * chunk * k, _NARROW * chunk * v
    beta, scores = _WIDE * chunk, (_NARROW + _WIDE) * chunk**2
    states, square = _NARROW * k * v, _NARROW * chunk**2

    gate = 2 * wide_k + _WIDE * k
    yield "gate", gate, gate
    operands = 2 * narrow_k + wide_k + beta
    yield "scores", _scores_loaded(w, tiles) + beta + scores, operands + scores
    if not w.is_bounded:
        ends = 2 * chunk // SCORE_ROWS * _WIDE * k + _WIDE * k
        flags = _WIDE * chunk // SCORE_ROWS
        yield "spans", ends + flags, ends + flags
        blocks = (_NARROW + _WIDE) * chunk * SCORE_ROWS
        # every block steep: each of its rows is a column once
        yield "diagonal", operands + narrow_k + wide_k + blocks, operands + blocks
    triangle = _WIDE * chunk * (chunk - 1) / 2
    yield "inverse", _inverse_moved(chunk, tiles.inverse_r), triangle + square
    row_operands = 2 * narrow_k + wide_k + narrow_v + beta
    rows = row_operands + 3 * narrow_k + narrow_v
    columns = -(-k // tiles.wu_k) - (-v // tiles.wu_v)
    yield "post-WU", rows + _WIDE * k + columns * square, rows + square
    parts = -(-v // tiles.state_v)
    shared, own = 2 * narrow_k + _WIDE * k, 2 * narrow_v + states
    yield "FwdH", parts * shared + own, shared + own
    parts = -(-v // tiles.out_v)
    shared, own = narrow_k + square, 2 * narrow_v + states
    yield "finalize", parts * shared + own, shared + own


def _scores_loaded(w: KdaWorkload, tiles: ChunkTiles) -> float:
    """Rows of a block and its reference, and keys, again for every tile of keys."""
    rows = SCORE_ROWS * (2 * _NARROW + _WIDE) + _WIDE
    keys = tiles.score_c * (_NARROW + _WIDE)
    loaded = 0
    for first in range(0, w.chunk_size, SCORE_ROWS):
        end = first + 1 if w.is_bounded else first
        loaded += len(range(0, end, tiles.score_c)) * (rows + keys) * w.key_dim
    return loaded


def _inverse_moved(chunk: int, rows: int) -> float:
    """Rows below the diagonal, blocks in fp32, and four squares in, four out for every merge."""
    size = _NARROW if rows == chunk else _WIDE
    moved = chunk // rows * (_WIDE * rows * (rows - 1) / 2 + size * rows**2)
    while rows < chunk:
        size = _NARROW if 2 * rows == chunk else _WIDE
        moved += chunk // (2 * rows) * 4 * rows**2 * (_WIDE + size)
        rows *= 2
    return moved
