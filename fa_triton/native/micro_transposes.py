"""Transposes and sums across lanes, in registers."""

from __future__ import annotations

from fa_triton.native.micro_builder import F32, LANES, Builder


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


def add_lanes(b: Builder, vectors: list[str]) -> str:
    """Sums over the lanes of 16 vectors, one per lane of the result."""
    width = LANES // 2
    while len(vectors) > 1:
        # Pairs are half the list apart: the order of the lanes is then that of the list.
        half = len(vectors) // 2
        low = [lane + (0 if not lane & width else LANES - width) for lane in range(LANES)]
        high = [lane + (width if not lane & width else LANES) for lane in range(LANES)]
        folded = []
        for pair in zip(vectors[:half], vectors[half:], strict=True):
            left, right = (b.shuffle(F32, *pair, lanes) for lanes in (low, high))
            folded.append(b.value(f"fadd {F32} {left}, {right}"))
        vectors, width = folded, width // 2
    return vectors[0]
