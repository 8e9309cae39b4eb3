"""Values of the sequence lengths: their rules, the actual lengths, and bounds without reading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from fa_triton.layout import is_paged
from fa_triton.problem import BatchProblem, Side, SideName
from fa_triton.validation.scalars import one_of

Lengths: TypeAlias = torch.Tensor | np.ndarray | Sequence[int]

CHECK_VALUES_VARIABLE = "FA_TRITON_CHECK_VALUES"


@dataclass(frozen=True, eq=False)
class HostLengths:
    """Lengths on the host.

    Attributes:
        q: Query lengths, int64 ``[B]``.
        kv: Key lengths, int64 ``[B]``.
        are_bounds: Whether the device may find shorter ones.
    """

    q: np.ndarray
    kv: np.ndarray
    are_bounds: bool = False


def value_checks_enabled() -> bool:
    """Whether ``FA_TRITON_CHECK_VALUES=1`` asks for checks that read lengths from the device."""
    value = os.environ.get(CHECK_VALUES_VARIABLE, "0")
    return one_of(CHECK_VALUES_VARIABLE, value, ("0", "1")) == "1"


def check_lengths_on_host(
    problem: BatchProblem,
    *,
    cu_seqlens_q: Lengths | None = None,
    cu_seqlens_kv: Lengths | None = None,
    seqused_q: Lengths | None = None,
    seqused_kv: Lengths | None = None,
) -> None:
    """Check the values of the lengths. A tensor on a device is copied, which synchronises.

    Raises:
        ValueError: A value that no kernel could honour, with its position.
    """
    resolve_lengths(
        problem,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_kv=cu_seqlens_kv,
        seqused_q=seqused_q,
        seqused_kv=seqused_kv,
    )


def resolve_lengths(
    problem: BatchProblem,
    *,
    cu_seqlens_q: Lengths | None = None,
    cu_seqlens_kv: Lengths | None = None,
    seqused_q: Lengths | None = None,
    seqused_kv: Lengths | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Actual lengths of all sequences on the host, checked.

    ``seqused`` wins over the difference of ``cu_seqlens``, which wins over the sequence axis. A
    tensor on a device is copied, which synchronises; :func:`bound_lengths` reads none.

    Returns:
        Query lengths and key lengths, int64 ``[B]``.

    Raises:
        ValueError: A value that no kernel could honour, with its position.
    """
    return (
        _resolve(problem, "q", cu_seqlens_q, seqused_q),
        _resolve(problem, "kv", cu_seqlens_kv, seqused_kv),
    )


def lengths_to_plan(
    problem: BatchProblem,
    *,
    avoid_reading: bool,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_kv: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_kv: torch.Tensor | None = None,
) -> HostLengths:
    """Lengths to plan for.

    Args:
        problem: The validated call.
        avoid_reading: Let the ``max_seqlen`` arguments stand for the length tensors, without a
            synchronisation, if every side that has such tensors has that bound.
        cu_seqlens_q: Starts of the packed queries.
        cu_seqlens_kv: Starts of the packed keys.
        seqused_q: Actual query lengths.
        seqused_kv: Actual key lengths.
    """
    sides = (problem.side("q"), problem.side("kv"))
    with_tensors = [side for side in sides if side.has_length_tensors]
    if avoid_reading and with_tensors and all(side.max_seqlen >= 0 for side in with_tensors):
        return HostLengths(*bound_lengths(problem), are_bounds=True)
    lengths = resolve_lengths(
        problem,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_kv=cu_seqlens_kv,
        seqused_q=seqused_q,
        seqused_kv=seqused_kv,
    )
    return HostLengths(*lengths, are_bounds=any(_is_bounded_only(side) for side in sides))


def _is_bounded_only(side: Side) -> bool:
    """Whether the host knows an upper bound of the lengths and the device will know them."""
    lies_apart = side.layout == "TND" or is_paged(side.layout)
    # a sequence of at most one token is there or not: nothing of a plan to keep even
    return lies_apart and not side.has_length_tensors and side.seqlen > 1


def bound_lengths(problem: BatchProblem) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds of all lengths from host integers alone, for a plan without a synchronisation.

    Returns:
        Bounds of the query lengths and of the key lengths, int64 ``[B]``.

    Raises:
        ValueError: A packed side without ``max_seqlen`` whose number of tokens is unknown.
    """
    return (
        np.full(problem.batch_size, _bound(problem.side("q")), np.int64),
        np.full(problem.batch_size, _bound(problem.side("kv")), np.int64),
    )


def _bound(side: Side) -> int:
    known = [bound for bound in (side.max_seqlen, side.seqlen, side.total) if bound >= 0]
    if not known:
        raise ValueError(
            f"`max_seqlen_{side.name}` must be given where the lengths are not read, got -1"
        )
    return min(known)


def _resolve(
    problem: BatchProblem, name: SideName, cu_seqlens: Lengths | None, seqused: Lengths | None
) -> np.ndarray:
    side = problem.side(name)
    for given, tensor, word in (
        (side.has_cu_seqlens, cu_seqlens, "cu_seqlens"),
        (side.has_seqused, seqused, "seqused"),
    ):
        if given != (tensor is not None):
            raise ValueError(
                f"`{word}_{name}` must be {'given' if given else 'None'} as in the validated "
                f"call, got {'a value' if tensor is not None else 'None'}"
            )
    lengths = _room(side, problem.batch_size, cu_seqlens)
    if seqused is not None:
        lengths = _used(side, problem.batch_size, seqused, lengths)
    longest = int(lengths.max())
    if 0 <= side.max_seqlen < longest:
        raise ValueError(
            f"`max_seqlen_{name}` must be at least the longest length {longest}, "
            f"got {side.max_seqlen}"
        )
    return lengths


def _room(side: Side, batch_size: int, cu_seqlens: Lengths | None) -> np.ndarray:
    """How many tokens each sequence has room for."""
    if cu_seqlens is None:
        room = side.seqlen if side.seqlen >= 0 else np.iinfo(np.int32).max
        return np.full(batch_size, room, np.int64)
    name = f"cu_seqlens_{side.name}"
    cu = _to_host(name, cu_seqlens, batch_size + 1)
    if cu[0] != 0:
        raise ValueError(f"`{name}[0]` must be 0, got {cu[0]}")
    room = np.diff(cu)
    falls = np.flatnonzero(room < 0)
    if falls.size:
        b = int(falls[0])
        raise ValueError(
            f"`{name}` must not decrease, got {cu[b]} at {b} and {cu[b + 1]} at {b + 1}"
        )
    if 0 <= side.total < cu[-1]:
        raise ValueError(f"`{name}[-1]` must be at most T = {side.total}, got {cu[-1]}")
    return room


def _used(side: Side, batch_size: int, seqused: Lengths, room: np.ndarray) -> np.ndarray:
    """Actual lengths, each within its room."""
    name = f"seqused_{side.name}"
    used = _to_host(name, seqused, batch_size)
    outside = np.flatnonzero((used < 0) | (used > room))
    if outside.size:
        b = int(outside[0])
        raise ValueError(
            f"`{name}[{b}]` must lie between 0 and {room[b]}, the room of this sequence, "
            f"got {used[b]}"
        )
    return used


def _to_host(name: str, values: Lengths, count: int) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    array = np.asarray(values, dtype=np.int64)
    if array.shape != (count,):
        raise ValueError(f"`{name}` must have shape ({count},), got {array.shape}")
    return array
