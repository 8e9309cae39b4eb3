"""Transposes in registers."""

from __future__ import annotations

from fa_triton.native.microkernels.builder import LANES, Builder


def transpose(b: Builder, kind: str, rows: list[str]) -> list[str]:
    """Transpose 16 vectors of 16 words, in four steps that swap ever smaller blocks."""
    for distance in (8, 4, 2, 1):
        rows = _exchange(b, kind, rows, distance)
    return rows


def _exchange(b: Builder, kind: str, rows: list[str], distance: int) -> list[str]:
    """Swap the off-diagonal blocks of size ``distance``."""
    result = list(rows)
    keep = [lane if not lane & distance else lane + LANES - distance for lane in range(LANES)]
    take = [lane + distance if not lane & distance else lane + LANES for lane in range(LANES)]
    for row in range(LANES):
        if not row & distance:
            pair = rows[row], rows[row + distance]
            result[row] = b.shuffle(kind, *pair, keep)
            result[row + distance] = b.shuffle(kind, *pair, take)
    return result
