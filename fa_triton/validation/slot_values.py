"""Values of sequence starts and of indices into a pool, on the host."""

from __future__ import annotations

import numpy as np


def check_starts(name: str, starts: np.ndarray, num_tokens: int) -> np.ndarray:
    """Check the starts of packed sequences.

    Args:
        name: Of the argument.
        starts: Its values ``[N + 1]``.
        num_tokens: Rows there are; fewer may be used, the rest is padding.

    Returns:
        Lengths ``[N]``.

    Raises:
        ValueError: A value that no kernel could honour, with its position.
    """
    if starts[0] != 0:
        raise ValueError(f"`{name}[0]` must be 0, got {starts[0]}")
    lengths = np.diff(starts)
    falls = np.flatnonzero(lengths < 0)
    if falls.size:
        n = int(falls[0])
        raise ValueError(
            f"`{name}` must not decrease, got {starts[n]} at {n} and {starts[n + 1]} at {n + 1}"
        )
    if starts[-1] > num_tokens:
        raise ValueError(f"`{name}[-1]` must be at most T = {num_tokens}, got {starts[-1]}")
    return lengths


def check_slots(
    name: str,
    indices: np.ndarray,
    num_slots: int,
    *,
    skipped: np.ndarray,
    used: np.ndarray,
    is_written: bool = True,
) -> None:
    """Check indices into a pool.

    Args:
        name: Of the argument.
        indices: Its values.
        num_slots: Slots of the pool.
        skipped: Which of them say that there is no slot.
        used: Which of them are followed.
        is_written: Whether the pool is written, so that no slot may be named twice.

    Raises:
        ValueError: A slot that does not exist, or a written one that is named twice.
    """
    followed = used & ~skipped
    outside = followed & ((indices < 0) | (indices >= num_slots))
    if outside.any():
        position = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(
            f"`{name}{list(position)}` must be below {num_slots}, the slots of the pool, "
            f"got {indices[position]}"
        )
    slots, counts = np.unique(indices[followed], return_counts=True)
    if is_written and (counts > 1).any():
        shared = int(slots[counts > 1][0])
        raise ValueError(f"`{name}` must name every slot once, got {shared} more than once")


def check_counts(name: str, counts: np.ndarray, limits: np.ndarray | int, meaning: str) -> None:
    """Check counts that must lie between 1 and ``limits``, described by ``meaning``.

    Raises:
        ValueError: The first count outside, with its position.
    """
    limits = np.broadcast_to(limits, counts.shape)
    outside = np.flatnonzero((counts < 1) | (counts > limits))
    if outside.size:
        n = int(outside[0])
        raise ValueError(
            f"`{name}[{n}]` must lie between 1 and {limits[n]}, {meaning}, got {counts[n]}"
        )
