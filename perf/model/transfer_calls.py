"""Library functions that move tiles between memories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from perf.model.memref import GLOBAL, MemRef
from perf.model.stream import Memory, Transfer

WORKSPACE = "workspace"


def _whose(outside: MemRef) -> Memory:
    if outside.space != GLOBAL:
        return "chip"
    return "workspace" if outside.origin == WORKSPACE else "caller"


def _bursts(outside: MemRef) -> int:
    """Rows that do not lie behind each other; dense rows are one burst."""
    strides = outside.strides
    if strides is None or not outside.elements:
        return 1
    dense, rows = 1, 1
    for size, stride in zip(reversed(outside.shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if stride == dense and rows == 1:
            dense *= size
        else:
            rows *= size
    return rows


def _transfer(
    pipe: Any, path: str, outside_at: int, *, is_write: bool = False, far: bool = True
) -> Callable[[str, Sequence[MemRef]], Transfer]:
    """Rule for a function whose memref number ``outside_at`` says what is moved."""

    def read(call: str, memories: Sequence[MemRef]) -> Transfer:
        outside = memories[outside_at]
        return Transfer(
            pipe=pipe,
            path=path,
            call=call,
            bytes=outside.bytes,
            rows=_bursts(outside),
            memory=_whose(outside) if far else "chip",
            is_write=is_write,
        )

    return read


def _from_accumulator(path: str) -> Callable[[str, Sequence[MemRef]], Transfer]:
    """L0C to rows; an accumulator of unknown target size counts as a whole."""

    def read(call: str, memories: Sequence[MemRef]) -> Transfer:
        source, target = memories[:2]
        moved = target.bytes if target.elements > 0 else source.bytes
        return Transfer(
            pipe="FIX",
            path=path,
            call=call,
            bytes=moved,
            rows=math.prod(target.shape[:-1]),
            memory=_whose(target),
            is_write=True,
        )

    return read


# by the start of the name; the first that fits counts
RULES: tuple[tuple[str, Callable[[str, Sequence[MemRef]], Transfer]], ...] = (
    ("nd2nz", _transfer("MTE2", "gm_to_l1", 0)),
    ("load_gm_to_cbuf", _transfer("MTE2", "gm_to_l1", 0)),
    ("set_l1", _transfer("MTE2", "l1_fill", 0, far=False)),
    ("load_gm_to_ubuf", _transfer("MTE2", "gm_to_ub", 0)),
    ("store_ubuf_to_gm", _transfer("MTE3", "ub_to_gm", 1, is_write=True)),
    ("copy_ubuf_to_cbuf", _transfer("MTE3", "ub_to_l1", 0, far=False)),
)
TO_UB, TO_GM = _from_accumulator("l0c_to_ub"), _from_accumulator("l0c_to_gm")


def transfer(call: str, memories: Sequence[MemRef]) -> Transfer | None:
    """Read a call as a transfer; None if it is none.

    Args:
        call: Name of the library function.
        memories: Its memref arguments in order.
    """
    if call.startswith("fixpipe"):
        return (TO_UB if call.endswith("_ubuf") else TO_GM)(call, memories)
    for start, read in RULES:
        if call.startswith(start):
            return read(call, memories)
    return None
