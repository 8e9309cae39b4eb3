"""Cut a call into calls of few sequences, so that its float64 reference fits into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fa_triton.layout import is_paged

# Elements of the result per piece; the reference holds them in float64.
PIECE_ELEMENTS = 2**22


@dataclass(frozen=True)
class Piece:
    """The call of some neighbouring sequences, and where its results lie in those of the whole.

    Attributes:
        arguments: Arguments of ``flash_attn``.
        out: View of the whole result.
        lse: View of the whole log-sum-exp, None where there is none.
    """

    arguments: dict[str, Any]
    out: torch.Tensor
    lse: torch.Tensor | None


def pieces(
    arguments: dict[str, Any],
    out: torch.Tensor,
    lse: torch.Tensor | None,
    elements: int = PIECE_ELEMENTS,
) -> Iterator[Piece]:
    """Cut a call and its results; every element of the results is in one piece.

    Args:
        arguments: Arguments of ``flash_attn``, q, k and v among them.
        out: Its result.
        lse: Its log-sum-exp or None.
        elements: Cut where a piece has so many elements of the result.
    """
    q_starts = _starts(arguments, "q")
    kv_starts = _starts(arguments, "kv")
    batch_size = len(q_starts) - 1 if q_starts else arguments["q"].shape[0]
    per_row = out[0].numel()
    first = 0
    while first < batch_size:
        last = first + 1
        while last < batch_size:
            rows = q_starts[last + 1] - q_starts[first] if q_starts else last + 1 - first
            if rows * per_row > elements:
                break
            last += 1
        yield from _piece(arguments, out, lse, q_starts, kv_starts, first, last)
        first = last


def _piece(
    arguments: dict[str, Any],
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q_starts: list[int],
    kv_starts: list[int],
    first: int,
    last: int,
) -> Iterator[Piece]:
    """The piece of sequences ``first`` to ``last``; none where they have no row at all."""
    part = dict(arguments)
    for name in ("seqused_q", "seqused_kv", "block_table"):
        if arguments.get(name) is not None:
            part[name] = arguments[name][first:last]
    rows = slice(first, last)
    if q_starts:
        # rows past the last sequence are padding and belong to the last piece
        is_last = last == len(q_starts) - 1
        rows = slice(q_starts[first], out.shape[0] if is_last else q_starts[last])
        if rows.start == rows.stop:
            return
        part["cu_seqlens_q"] = arguments["cu_seqlens_q"][first : last + 1] - rows.start
    part["q"] = arguments["q"][rows]
    if kv_starts:
        # no operand may be empty, so a piece without keys gets one that no sequence has
        start = min(kv_starts[first], arguments["k"].shape[0] - 1)
        keys = slice(start, max(kv_starts[last], start + 1))
        part["cu_seqlens_kv"] = arguments["cu_seqlens_kv"][first : last + 1] - kv_starts[first]
    elif not is_paged(arguments["layout_kv"]):
        keys = slice(first, last)
    else:
        keys = slice(None)
    part["k"], part["v"] = arguments["k"][keys], arguments["v"][keys]
    if lse is not None:
        lse = lse[:, rows] if q_starts else lse[rows]
    yield Piece(part, out[rows], lse)


def _starts(arguments: dict[str, Any], side: str) -> list[int]:
    """Starts of packed sequences; empty for a layout with a sequence axis."""
    starts = arguments.get(f"cu_seqlens_{side}")
    return [] if starts is None else starts.tolist()
