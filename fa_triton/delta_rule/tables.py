"""Tables that say where chunks and sequences lie, built once per batch.

A row of ``chunks`` is (batch entry, first token, valid tokens, sequence); a row of ``sequences`` is
(batch entry, first token, tokens, first chunk, sequence), the longest sequence first, so that the
last cores to finish have the least to do.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch

from fa_triton.validation.length_values import value_checks_enabled
from fa_triton.validation.slot_values import check_starts

_KEPT_BATCHES = 64
_LENGTHS_ATTRIBUTE = "_fa_triton_cu_seqlens"

Indices = torch.Tensor | Sequence[object]


@dataclass(frozen=True)
class ChunkTables:
    """Both tables on the device.

    Attributes:
        chunks: ``[Nc, 4]`` int32, of all batch entries.
        sequences: ``[N, 5]`` int32.
    """

    chunks: torch.Tensor
    sequences: torch.Tensor

    @property
    def num_chunks(self) -> int:
        """Chunks of all sequences."""
        return self.chunks.shape[0]

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return self.sequences.shape[0]


_recent: OrderedDict[tuple[object, ...], ChunkTables] = OrderedDict()
_recent_lock = threading.Lock()


def chunk_tables(
    *,
    batch_size: int,
    num_tokens: int,
    chunk_size: int,
    device: torch.device,
    cu_seqlens: Indices | None,
    chunk_indices: Indices | None,
) -> ChunkTables:
    """Build the tables of a batch, or take those of an equal one.

    Lengths that lie on an accelerator are copied to the host, once per tensor, which synchronises;
    with ``chunk_indices`` on the device as well they stay there, unread.

    Raises:
        ValueError: Lengths or chunk indices that describe no batch of these tokens.
    """
    if _is_on_device(cu_seqlens) and _is_on_device(chunk_indices) and not value_checks_enabled():
        return _tables_on_device(cu_seqlens, chunk_indices, chunk_size)
    if cu_seqlens is None:
        starts = None
        key: tuple[object, ...] = (batch_size, num_tokens, chunk_size, device)
    else:
        starts = _host_lengths(cu_seqlens, num_tokens)
        key = (starts.tobytes(), chunk_size, device)
    with _recent_lock:
        tables = _recent.get(key)
        if tables is not None:
            _recent.move_to_end(key)
    if tables is None:
        tables = _build(starts, batch_size, num_tokens, chunk_size, device)
        with _recent_lock:
            _recent[key] = tables
            if len(_recent) > _KEPT_BATCHES:
                _recent.popitem(last=False)
    if chunk_indices is not None and starts is not None:
        _check_chunk_indices(chunk_indices, starts, chunk_size)
    return tables


def canonical_chunk_indices(starts: np.ndarray, chunk_size: int) -> np.ndarray:
    """Pairs (sequence, chunk of the sequence) of all chunks, ``[Nc, 2]`` int64."""
    counts = -(-np.diff(starts) // chunk_size)
    sequence = np.repeat(np.arange(len(counts)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([sequence, np.arange(len(sequence)) - first], axis=1)


def _build(
    starts: np.ndarray | None,
    batch_size: int,
    num_tokens: int,
    chunk_size: int,
    device: torch.device,
) -> ChunkTables:
    is_packed = starts is not None
    if starts is None:
        starts = np.arange(batch_size + 1, dtype=np.int64) * num_tokens
    pairs = canonical_chunk_indices(starts, chunk_size)
    sequence, local = pairs[:, 0], pairs[:, 1]
    lengths = np.diff(starts)
    origin = starts[:-1] if is_packed else np.zeros(len(lengths), np.int64)
    entry = np.zeros(len(lengths), np.int64) if is_packed else np.arange(len(lengths))
    first = origin[sequence] + local * chunk_size
    valid = np.minimum(chunk_size, lengths[sequence] - local * chunk_size)
    counts = -(-lengths // chunk_size)
    longest_first = np.argsort(-lengths, kind="stable")
    columns = (entry, origin, lengths, np.cumsum(counts) - counts, np.arange(len(lengths)))
    return ChunkTables(
        chunks=_on_device((entry[sequence], first, valid, sequence), device),
        sequences=_on_device([column[longest_first] for column in columns], device),
    )


def _on_device(columns: Sequence[np.ndarray], device: torch.device) -> torch.Tensor:
    table = np.ascontiguousarray(np.stack(columns, axis=1).astype(np.int32))
    return torch.from_numpy(table).to(device)


def _is_on_device(indices: Indices | None) -> TypeGuard[torch.Tensor]:
    return isinstance(indices, torch.Tensor) and indices.device.type != "cpu"


def _tables_on_device(
    cu_seqlens: torch.Tensor, chunk_indices: torch.Tensor, chunk_size: int
) -> ChunkTables:
    """Build both tables by torch, reading nothing; the sequences keep their order."""
    pairs = chunk_indices.reshape(-1, 2).to(torch.int64)
    starts = cu_seqlens.to(torch.int64)
    lengths = starts.diff()
    sequence, local = pairs.unbind(1)
    first = starts[sequence] + local * chunk_size
    valid = (starts[sequence + 1] - first).clamp(max=chunk_size)
    counts = (lengths + chunk_size - 1) // chunk_size
    index = torch.arange(len(lengths), device=starts.device)
    sequences = (torch.zeros_like(index), starts[:-1], lengths, counts.cumsum(0) - counts, index)
    return ChunkTables(
        chunks=torch.stack([torch.zeros_like(first), first, valid, sequence], 1).int(),
        sequences=torch.stack(sequences, 1).int(),
    )


def _host_lengths(cu_seqlens: Indices, num_tokens: int) -> np.ndarray:
    """Starts of the sequences, int64, checked; kept with a tensor until it is written to.

    A copy of the tensor takes the attribute along, but not the address.
    """
    if not isinstance(cu_seqlens, torch.Tensor):
        return _checked(np.asarray(cu_seqlens, np.int64), num_tokens)
    version = None if cu_seqlens.is_inference() else cu_seqlens._version
    written = (version, cu_seqlens.data_ptr())
    known = getattr(cu_seqlens, _LENGTHS_ATTRIBUTE, None)
    if known is not None and version is not None and known[0] == written:
        return _checked(known[1], num_tokens)
    starts = cu_seqlens.cpu().numpy().astype(np.int64)
    if cu_seqlens.device.type != "cpu":
        setattr(cu_seqlens, _LENGTHS_ATTRIBUTE, (written, starts))
    return _checked(starts, num_tokens)


def _checked(starts: np.ndarray, num_tokens: int) -> np.ndarray:
    check_starts("cu_seqlens", starts, num_tokens)
    if starts[-1] != num_tokens:
        raise ValueError(
            f"`cu_seqlens[-1]` must be the number of tokens {num_tokens}, got {starts[-1]}"
        )
    return starts


def _check_chunk_indices(indices: Indices, starts: np.ndarray, chunk_size: int) -> None:
    wanted = canonical_chunk_indices(starts, chunk_size)
    if isinstance(indices, torch.Tensor):
        given = indices.cpu().numpy().astype(np.int64).reshape(-1, 2)
    else:
        given = np.asarray(indices, np.int64).reshape(-1, 2)
    if given.shape != wanted.shape:
        raise ValueError(
            f"`chunk_indices` must hold {len(wanted)} pairs (sequence, chunk) for chunks of "
            f"{chunk_size} tokens, got {len(given)}"
        )
    wrong = np.flatnonzero((given != wanted).any(1))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"`chunk_indices` must list the chunks of each sequence in order, "
            f"{wanted[at].tolist()} at position {at}, got {given[at].tolist()}"
        )
