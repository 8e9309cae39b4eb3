"""Transposes and sums across lanes, in registers."""

from __future__ import annotations

from fa_triton.native.micro_builder import Builder


def transpose(b: Builder, kind: str, rows: list[str]) -> list[str]:
    """Transpose as many vectors as they have words, in steps that swap ever smaller blocks."""
    distance = b.lanes // 2
    while distance:
        rows = _exchange(b, kind, rows, distance)
        distance //= 2
    return rows


def _exchange(b: Builder, kind: str, rows: list[str], distance: int) -> list[str]:
    """Swap the off-diagonal blocks of size ``distance``."""
    result, lanes = list(rows), b.lanes
    keep = [lane if not lane & distance else lane + lanes - distance for lane in range(lanes)]
    take = [lane + distance if not lane & distance else lane + lanes for lane in range(lanes)]
    for row in range(lanes):
        if not row & distance:
            pair = rows[row], rows[row + distance]
            result[row] = b.shuffle(kind, *pair, keep)
            result[row + distance] = b.shuffle(kind, *pair, take)
    return result


def even_and_odd(b: Builder, first: str, second: str) -> list[str]:
    """The lanes in even places of two consecutive vectors, and those in odd ones."""
    places = range(2 * b.lanes)
    return [b.shuffle(b.f32, first, second, places[start::2]) for start in range(2)]


def alternate(b: Builder, even: str, odd: str) -> list[str]:
    """Undo :func:`even_and_odd`."""
    lanes = [place // 2 + place % 2 * b.lanes for place in range(2 * b.lanes)]
    return [b.shuffle(b.f32, even, odd, half) for half in (lanes[: b.lanes], lanes[b.lanes :])]


def add_lanes(b: Builder, vectors: list[str]) -> str:
    """Sums over the lanes of as many vectors as they have, one per lane of the result."""
    width = b.lanes // 2
    while len(vectors) > 1:
        # Pairs are half the list apart: the order of the lanes is then that of the list. Lanes that
        # stay in their place cost less than a shuffle.
        half = len(vectors) // 2
        low = [lane + (0 if not lane & width else b.lanes) for lane in range(b.lanes)]
        high = [lane + (width if not lane & width else b.lanes - width) for lane in range(b.lanes)]
        folded = []
        for pair in zip(vectors[:half], vectors[half:], strict=True):
            left, right = (b.shuffle(b.f32, *pair, lanes) for lanes in (low, high))
            folded.append(b.value(f"fadd {b.f32} {left}, {right}"))
        vectors, width = folded, width // 2
    return vectors[0]
