"""Which keys of the cache belong to each sequence, computed where the lengths lie."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fa_triton.incremental_problem import IncreOptions, IncreProblem


@dataclass(frozen=True)
class KeySpans:
    """Own keys of each sequence, on the device.

    Attributes:
        lengths: How many there are ``[B]``, int32; None: as many as there is room for.
        first_columns: Where they start ``[B]``, int32, with left padding; None: at 0.
    """

    lengths: torch.Tensor | None = None
    first_columns: torch.Tensor | None = None


def key_spans(options: IncreOptions, problem: IncreProblem, device: torch.device) -> KeySpans:
    """Read off lengths and left padding; a sequence that would start before 0 has no keys."""
    lengths = _lengths(options, problem, device)
    padding = options.get("kv_padding_size")
    if padding is None or lengths is None or not problem.has_left_padding:
        return KeySpans(lengths)
    room = problem.attn.seqlen_kv
    first = room - padding.clamp(0, room).to(torch.int32) - lengths
    fitting = torch.where(first < 0, 0, lengths)
    return KeySpans(fitting.int(), first.clamp(min=0).int())


def _lengths(
    options: IncreOptions, problem: IncreProblem, device: torch.device
) -> torch.Tensor | None:
    batch = problem.attn.batch_size
    given = options.get("actual_seq_lengths")
    if not (problem.has_device_lengths and isinstance(given, torch.Tensor)):
        host = problem.host_lengths or problem.list_lengths
        return None if host is None else _on_device(host, device)
    lengths = given
    if given.dtype != torch.int32:
        # a length of 64 bits must not come out small
        lengths = given.clamp(-1, problem.attn.seqlen_kv).to(torch.int32)
    lengths = lengths.expand(batch) if problem.broadcasts_lengths else lengths[:batch]
    if problem.list_lengths is not None:
        # the kernels bound lengths by the longest tensor
        lengths = torch.minimum(lengths, _on_device(problem.list_lengths, device))
    return lengths.contiguous()


@functools.lru_cache(maxsize=64)
def _on_device(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Lengths as the kernels read them; every layer of a step has the same."""
    with torch.inference_mode(False):
        return torch.tensor(lengths, dtype=torch.int32, device="cpu").to(device)
