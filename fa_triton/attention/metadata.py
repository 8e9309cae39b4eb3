"""A plan table as a caller hands it over: what it says, and whether it belongs to the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fa_triton.planner.table import HEADER_WORDS, Header, check_header, read_header

if TYPE_CHECKING:
    from fa_triton.problem import BatchProblem

_HEADER_ATTRIBUTE = "_fa_triton_header"


@dataclass(frozen=True)
class PlannedCall:
    """A plan table on the device of the call, and its header on the host."""

    table: torch.Tensor
    header: Header


@dataclass(frozen=True)
class KnownHeader:
    """A header read from a tensor, and the version of the tensor that it was read from."""

    header: Header
    version: int

    @staticmethod
    def of(table: torch.Tensor) -> Header | None:
        """Header that a tensor is known to hold; None if it was written to since then."""
        known: KnownHeader | None = getattr(table, _HEADER_ATTRIBUTE, None)
        return known.header if known is not None and known.version == _version(table) else None

    @staticmethod
    def remember(table: torch.Tensor, header: Header) -> None:
        """Keep the header with the tensor."""
        version = _version(table)
        if version is not None:
            setattr(table, _HEADER_ATTRIBUTE, KnownHeader(header, version))


def read_metadata(metadata: torch.Tensor) -> PlannedCall:
    """Take a caller's table.

    The header of a tensor made by ``flash_attn_metadata`` is known on the host; that of a copy on
    a device is read once after every write to it, and at every call if it is an inference tensor,
    which synchronises.

    Raises:
        ValueError: No table.
    """
    header = KnownHeader.of(metadata)
    if header is None:
        header = read_header(metadata[:HEADER_WORDS].cpu().numpy())
        header.check_length(metadata.numel())
        KnownHeader.remember(metadata, header)
    return PlannedCall(metadata, header)


def check_belongs(problem: BatchProblem, header: Header) -> None:
    """Refuse the table of another problem.

    Raises:
        ValueError: Names what differs.
    """
    check_header(
        header,
        batch_size=problem.batch_size,
        num_heads_q=problem.num_heads_q,
        num_heads_kv=problem.num_heads_kv,
        head_dim=problem.head_dim,
        mask_mode=problem.mask_mode,
        win_left=problem.win_left,
        win_right=problem.win_right,
        layout_q=problem.layout_q,
        layout_out=problem.layout_out,
    )
    _check_invariance(problem, header)
    if problem.seqlen_q > header.longest_q >= 0 and not (
        problem.has_cu_seqlens_q or problem.has_seqused_q
    ):
        raise ValueError(
            f"`metadata` must be made for queries of {problem.seqlen_q} tokens, "
            f"got a table for at most {header.longest_q}"
        )
    _check_exact_lengths(problem, header)


def _check_invariance(problem: BatchProblem, header: Header) -> None:
    """A plan and a call must agree on batch invariance: it is a property of both together."""
    if problem.batch_invariant != header.batch_invariant:
        raise ValueError(
            f"`metadata` must be made for the batch_invariant={problem.batch_invariant} of the "
            f"call, got a table for batch_invariant={header.batch_invariant}; pass the same value "
            "to flash_attn_metadata and flash_attn"
        )


def _check_exact_lengths(problem: BatchProblem, header: Header) -> None:
    """Refuse lengths that a table of ``section_stream_k`` with a left window cannot follow.

    It names the cuts by absolute key blocks of the planned lengths. Only axes are known here.
    """
    if not (header.is_section_stream_k and problem.has_left_window):
        return
    planned_of = ((problem.side("q"), header.longest_q), (problem.side("kv"), header.longest_kv))
    for side, planned in planned_of:
        exact = not (side.has_cu_seqlens or side.has_seqused)
        if exact and side.seqlen != planned:
            raise ValueError(
                f"`metadata` of section_stream_k with a left window must be made for the lengths "
                f"of the call, got a table for {planned} tokens of {side.name} and {side.seqlen}; "
                "use planner='balanced'"
            )


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written to; None for an inference tensor, which does not count."""
    return None if tensor.is_inference() else tensor._version
