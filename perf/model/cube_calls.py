"""The library's matrix product of one tile in L1: loads to L0A and L0B, passes of the cube.

Splits the inner dimension so that a part of each operand takes half of its buffer, and lets the two
halves alternate, with flags of its own or those of the kernel. Source: the public template library
of the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perf.model.memref import MemRef
from perf.model.stream import Flag, Multiply, Transfer, Work

_ROWS = 16
_BLOCK_BYTES = 32
_HALF_BUFFER = 32 * 1024
_NONE = -1


class MisplacedOperandError(RuntimeError):
    """A product whose operands in L1 do not hold what it asks for: the code is miscompiled."""


@dataclass(frozen=True)
class _Product:
    """Arguments of a call: sizes of the tiles as they lie in L1, flags that it must serve."""

    call: str
    rows: int
    columns: int
    asked: tuple[int, int, int]
    element_bytes: int
    waits: tuple[int, int]
    sets: tuple[int, int]
    pass_number: int
    events: tuple[int, int]

    @property
    def inner_block(self) -> int:
        return _BLOCK_BYTES // self.element_bytes

    @property
    def part(self) -> tuple[int, bool]:
        """Inner elements of a part, and whether two parts fit each buffer."""
        align = max(_ROWS, self.inner_block)
        widest = _up(max(self.rows, self.columns), align)
        half = _HALF_BUFFER // self.element_bytes
        part = half // widest // align * align
        if part:
            return part, True
        return max(align, 2 * half // widest // align * align), False


def product(call: str, arguments: Sequence[Any]) -> Iterator[Work | Flag]:
    """Yield what a call ``mma_tile_*`` issues.

    Args:
        call: Its name: ``_ta`` and ``_tb`` mark transposed operands.
        arguments: A, B, init, m, k, n, C, flags to wait for (A, B), to set (A, B), number of the
            pass, flags from M to MTE1, unit flag.

    Raises:
        MisplacedOperandError: A tile is too small for the product.
    """
    read = _read(call, arguments)
    asked_m, inner, asked_n = read.asked
    if min(read.asked) <= 0:
        return
    part, is_double = read.part
    parts = -(-inner // part)
    names = [
        f"library {n}" if event == _NONE else str(event) for n, event in enumerate(read.events)
    ]
    own = [name for name, event in zip(names, read.events, strict=True) if event == _NONE]
    for name in own:
        yield Flag(True, "M", "MTE1", name)
    for number in range(parts):
        width = min(part, inner - number * part)
        first = 0 if read.pass_number == _NONE else read.pass_number * parts
        used = [names[(first + number) % 2]] if is_double else names
        is_first, is_last = number == 0, number == parts - 1
        for name in used:
            yield Flag(False, "M", "MTE1", name)
        columns = _up(asked_n, _ROWS)
        for side, path, lines in (
            (0, "l1_to_l0a", _up(read.rows, _ROWS)),
            (1, "l1_to_l0b", columns),
        ):
            if is_first and read.waits[side] != _NONE:
                yield Flag(False, "MTE2", "MTE1", str(read.waits[side]))
            yield Transfer("MTE1", path, call, lines * width * read.element_bytes)
            if is_last and read.sets[side] != _NONE:
                yield Flag(True, "MTE1", "MTE2", str(read.sets[side]))
        yield Flag(True, "MTE1", "M", "library")
        yield Flag(False, "MTE1", "M", "library")
        yield Multiply(
            call,
            macs=asked_m * width * asked_n,
            steps=-(-read.rows // _ROWS) * -(-width // read.inner_block) * -(-asked_n // _ROWS),
            cycles_per_step=2 if read.element_bytes == 4 else 1,
        )
        for name in used:
            yield Flag(True, "M", "MTE1", name)
    for name in own:
        yield Flag(False, "M", "MTE1", name)


def _read(call: str, arguments: Sequence[Any]) -> _Product:
    places = [at for at, value in enumerate(arguments) if isinstance(value, MemRef)]
    a, b = arguments[places[0]], arguments[places[1]]
    sizes = [int(value) for value in arguments[places[1] + 2 : places[2]]]
    flags = [int(value) for value in arguments[places[2] + 1 :]]
    # tiles lie in L1 as [columns / 16, rows / 16, 16, 16]
    outer, inner = a.shape[0] * a.shape[3], a.shape[1] * a.shape[2]
    rows, inner_a = (outer, inner) if "_ta" in call else (inner, outer)
    outer, inner = b.shape[0] * b.shape[3], b.shape[1] * b.shape[2]
    columns, inner_b = (inner, outer) if "_tb" in call else (outer, inner)
    held = (rows, min(inner_a, inner_b), columns)
    if any(has < asked for has, asked in zip(held, sizes, strict=True)):
        raise MisplacedOperandError(
            f"{call} must find tiles of m, k, n {sizes} in L1, got {list(a.shape)} and "
            f"{list(b.shape)}, which hold {list(held)}"
        )
    return _Product(
        call=call,
        rows=rows,
        columns=columns,
        asked=(sizes[0], sizes[1], sizes[2]),
        element_bytes=a.element_bits // 8,
        waits=(flags[0], flags[1]),
        sets=(flags[2], flags[3]),
        pass_number=flags[4],
        events=(flags[5], flags[6]),
    )


def _up(size: int, to: int) -> int:
    return -(-size // to) * to
