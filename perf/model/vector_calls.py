"""Library functions of the vector unit of A2 and A3, as steps of 256 bytes.

The file does not hold the functions' bodies. Steps are counted as the public template library
issues them for types and alignments that it supports; every row of the last dimension starts one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from perf.model.core import UnknownOperationError
from perf.model.memref import MemRef
from perf.model.stream import Vector

STEP_BYTES = 256
_BLOCK_BYTES = 32
# memrefs that take part, the result included; what follows is scratch
_BINARY = ("vadd", "vsub", "vmul", "vdiv", "vmax", "vmin", "vand", "vor", "vcmp")
_UNARY = ("vexp", "vln", "vcast", "vnot", "vabs", "vsqrt", "vrsqrt", "vrec", "vrelu")
_WITH_SCALAR = ("vadds", "vmuls", "vmaxs", "vmins", "vdivs", "vcmps", "vshls", "vshrs")
_SELECT_MEMORIES = {"vv": 4, "vs": 3, "sv": 3, "ss": 2}
_ELEMENTWISE = re.compile(r"^(v[a-z]+)(?:_\w+?)??_(?:(vv|vs|sv|ss)_)?(\d)d_")
_SCALAR_FORM = {"vdiv": "vdivs"}


def vector(call: str, memories: Sequence[MemRef]) -> Vector | None:
    """Read a call as work of the vector unit; None if it has nothing to do.

    Args:
        call: Name of the library function.
        memories: Its memref arguments in order.

    Raises:
        UnknownOperationError: A function without a rule.
    """
    if not memories or memories[0].elements == 0:
        return None
    for start, read in _RULES:
        if call.startswith(start):
            return read(call, memories)
    named = _ELEMENTWISE.match(call)
    if named is None:
        raise UnknownOperationError(f"no rule for library function {call!r}")
    kind, operands, dimensions = named.groups()
    taking_part = memories[: _memories(call, kind, operands)]
    if operands in ("vs", "sv") and kind in _SCALAR_FORM:
        kind = _SCALAR_FORM[kind]
    return _elementwise(call, kind, taking_part, int(dimensions))


def _memories(call: str, kind: str, operands: str | None) -> int:
    if kind == "vsel" and operands in _SELECT_MEMORIES:
        return _SELECT_MEMORIES[operands]
    if operands in ("vs", "sv") or kind in _WITH_SCALAR or kind in _UNARY:
        return 2
    if kind in _BINARY:
        return 3
    raise UnknownOperationError(f"no rule for library function {call!r}")


def _elementwise(call: str, kind: str, memories: Sequence[MemRef], dimensions: int) -> Vector:
    """A step covers as many elements as its widest operand has in 256 bytes."""
    largest = max(memories, key=lambda memory: memory.elements)
    bits = max(memory.element_bits for memory in memories)
    if dimensions == 1:
        repeats = _steps(largest.elements, bits)
        return Vector(kind, call, repeats, instructions=math.ceil(repeats / 255))
    per_row = _steps(largest.columns, bits)
    spreads = any(m.columns == 1 for m in memories) and largest.columns > 1
    return Vector(
        kind,
        call,
        repeats=largest.rows * per_row,
        instructions=per_row,
        broadcasts=largest.rows if spreads else 0,
    )


def _steps(elements: int, bits: int) -> int:
    return -(-elements * bits // (8 * STEP_BYTES))


def _row_steps(memory: MemRef) -> int:
    return _steps(memory.columns, memory.element_bits)


def _fill(call: str, memories: Sequence[MemRef]) -> Vector:
    target = memories[0]
    return Vector("vdup", call, _steps(target.elements, target.element_bits))


def _copy(call: str, memories: Sequence[MemRef]) -> Vector:
    source = memories[0]
    if len(source.shape) == 1:
        return Vector("vcopy", call, _steps(source.elements, source.element_bits))
    return Vector("vcopy", call, source.rows * _row_steps(source))


def _spread_rows(call: str, memories: Sequence[MemRef]) -> Vector:
    target = memories[1]
    return Vector("vcopy", call, target.rows * _row_steps(target))


def _spread_columns(call: str, memories: Sequence[MemRef]) -> Vector:
    target = memories[1]
    return Vector("vcopy", call, target.rows * _row_steps(target), broadcasts=target.rows)


def _reduce_rows(call: str, memories: Sequence[MemRef]) -> Vector:
    """Fold each row to one step, then that to one value."""
    source = memories[0]
    per_row = _row_steps(source)
    return Vector(
        "vreduce",
        call,
        repeats=source.rows * (per_row - 1),
        instructions=per_row,
        reductions=source.rows,
    )


def _reduce_columns(call: str, memories: Sequence[MemRef]) -> Vector:
    source = memories[0]
    return Vector("vadd", call, source.rows * _row_steps(source), instructions=_row_steps(source))


def _cumulate(call: str, memories: Sequence[MemRef]) -> Vector:
    """Every row waits for the one before it."""
    source = memories[0]
    return Vector(
        "cumsum", call, source.rows * _row_steps(source), instructions=max(source.rows, 1)
    )


def _transpose(call: str, memories: Sequence[MemRef]) -> Vector:
    source = memories[0]
    return Vector("vtranspose", call, -(-source.bytes // (16 * _BLOCK_BYTES)))


_RULES: tuple[tuple[str, Callable[[str, Sequence[MemRef]], Vector]], ...] = (
    ("broadcast_scalar", _fill),
    ("arange", _fill),
    ("broadcast_first_axis", _spread_rows),
    ("broadcast_middle_axis", _spread_rows),
    ("broadcast_last_axis", _spread_columns),
    ("copy_ubuf_to_ubuf", _copy),
    ("enablevc_reduce", _reduce_rows),
    ("reduce", _reduce_columns),
    ("cumsum", _cumulate),
    ("transpose_3d_with_last_axis", _transpose),
    ("transpose_3d_without_last_axis", _copy),
)
