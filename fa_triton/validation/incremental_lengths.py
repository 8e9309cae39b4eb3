"""Key lengths of ``incre_flash_attention``: form, host values, left padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fa_triton.incremental_problem import IncreProblem
from fa_triton.validation.optional_tensors import as_given
from fa_triton.validation.scalars import as_int
from fa_triton.validation.tensors import check_device, check_index_tensor, check_is_tensor

NAME = "actual_seq_lengths"


@dataclass(frozen=True)
class ActualLengths:
    """What is known of the actual key lengths without reading a device.

    Attributes:
        host: Lengths of all sequences, None where the host does not know them.
        is_tensor: Whether a tensor holds them.
        is_broadcast: Whether that tensor holds one for all.
    """

    host: tuple[int, ...] | None
    is_tensor: bool
    is_broadcast: bool

    @property
    def are_given(self) -> bool:
        """Whether the call says lengths at all."""
        return self.is_tensor or self.host is not None


def check_actual_lengths(
    given: object, rooms: tuple[int, ...], device: torch.device
) -> ActualLengths:
    """Check the lengths: one for all sequences, or at least one per sequence.

    Args:
        given: Host integers or a tensor; None or empty for none.
        rooms: How many keys each sequence has room for.
        device: A tensor must be on.
    """
    batch_size = len(rooms)
    meaning = f"(1,) or at least ({batch_size},), one length for all or one per sequence"
    if isinstance(given, torch.Tensor):
        tensor = as_given(NAME, given)
        if tensor is None:
            return ActualLengths(None, False, False)
        check_index_tensor(
            NAME, tensor, shape=(None,), device=device, meaning=meaning, like="query"
        )
        if tensor.shape[0] != 1 and tensor.shape[0] < batch_size:
            raise ValueError(f"`{NAME}` must have shape {meaning}, got {tuple(tensor.shape)}")
        return ActualLengths(None, True, tensor.shape[0] == 1)
    if given is None:
        return ActualLengths(None, False, False)
    if isinstance(given, str) or not isinstance(given, (Sequence, np.ndarray)):
        raise TypeError(
            f"`{NAME}` must be a list of ints, or a tensor of int32 or int64, got "
            f"{type(given).__name__}"
        )
    if not len(given):
        return ActualLengths(None, False, False)
    lengths = [as_int(f"{NAME}[{b}]", length) for b, length in enumerate(given)]
    if len(lengths) != 1 and len(lengths) < batch_size:
        raise ValueError(
            f"`{NAME}` must hold 1 length or at least {batch_size}, one per sequence, got "
            f"{len(lengths)}"
        )
    lengths = lengths * batch_size if len(lengths) == 1 else lengths[:batch_size]
    check_length_values(lengths, rooms)
    return ActualLengths(tuple(lengths), False, False)


def check_length_values(lengths: Sequence[int], rooms: Sequence[int]) -> None:
    """Check that every length lies within its room."""
    for b, (length, room) in enumerate(zip(lengths, rooms, strict=True)):
        if not 0 <= length <= room:
            raise ValueError(
                f"`{NAME}[{b}]` must lie between 0 and {room}, the keys that this sequence has "
                f"room for, got {length}"
            )


def check_left_padding(kv_padding_size: object, device: torch.device) -> bool:
    """Check the tensor that tells how many keys follow the last one; return whether it is given."""
    if kv_padding_size is None:
        return False
    tensor = check_is_tensor("kv_padding_size", kv_padding_size)
    if not tensor.numel():
        return False
    if tensor.dtype != torch.int64:
        raise TypeError(f"`kv_padding_size` must have dtype int64, got {tensor.dtype}")
    if tensor.numel() != 1 or tensor.ndim > 1:
        raise ValueError(
            f"`kv_padding_size` must have shape (1,), one number for all sequences, got "
            f"{tuple(tensor.shape)}"
        )
    check_device("kv_padding_size", tensor, device, like="query")
    return True


def resolve_actual_lengths(problem: IncreProblem, given: torch.Tensor | None) -> tuple[int, ...]:
    """Actual key lengths on the host; a tensor on a device is copied, which synchronises.

    Args:
        problem: The validated call.
        given: Its ``actual_seq_lengths``, where that is a tensor.

    Raises:
        ValueError: A length outside of its room, with its position.
    """
    rooms = problem.rooms
    if problem.host_lengths is not None:
        return problem.host_lengths
    if not problem.has_device_lengths or given is None:
        return rooms
    lengths = given.tolist()
    lengths = lengths * len(rooms) if problem.broadcasts_lengths else lengths[: len(rooms)]
    check_length_values(lengths, rooms)
    return tuple(lengths)


def own_keys(problem: IncreProblem, lengths: Sequence[int], padding: int) -> list[tuple[int, int]]:
    """First column and number of the own keys of each sequence.

    Args:
        problem: The validated call.
        lengths: Actual lengths.
        padding: ``kv_padding_size``; read with left padding only.
    """
    if not problem.has_left_padding:
        return [(0, length) for length in lengths]
    last = problem.attn.seqlen_kv - max(padding, 0)
    return [(last - length, length) if length <= last else (0, 0) for length in lengths]
