"""Sizes of tiles that hold something whole."""

from __future__ import annotations


def padded(size: int, least: int = 1) -> int:
    """Smallest power of two that holds ``size``, ``least`` at least."""
    return max(1 << (size - 1).bit_length(), least)
