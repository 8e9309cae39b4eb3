"""Operands of matrix calls: whether their tiles in L1 hold what the product asks for.

A tile lies in L1 as blocks ``[columns / block, rows / 16, 16, block]`` of 32 bytes per row. A view
that merges axes of such a tile as if it lay row by row gives a product of other numbers, without
any message of the compiler.
"""

from __future__ import annotations

import re

from fa_triton.compile.regions import Function

_CALL = re.compile(r"call @(mma_tile_\w+)\(([^)]*)\)")
_CONSTANT = re.compile(r"^%[\w#]+ = (?:arith|llvm\.mlir)\.constant[ (](-?\d+)")
_SHAPE = re.compile(r"memref<(\d+)x(\d+)x(\d+)x(\d+)x\w+[,>]")
_VALUE = re.compile(r"%[\w#]+")
Shape = tuple[int, int, int, int]


def misplaced_operands(cube: Function) -> list[str]:
    """Describe every matrix call whose operands hold less than it asks for."""
    found = []
    for at, line in enumerate(cube.lines):
        call = _CALL.search(line.text)
        if call is None:
            continue
        values = [value.strip() for value in call[2].split(",")]
        shapes = [_shape(cube, value, at) for value in values[:2]]
        sizes = [_constant(cube, value, at) for value in values[3:6]]
        for name, shape, wanted in zip("AB", shapes, _wanted(call[1], sizes), strict=True):
            if shape is not None and not _holds(shape, *wanted):
                asked = ", ".join("?" if size is None else str(size) for size in sizes)
                found.append(
                    f"operand {name} of {call[1]} lies in L1 as {'x'.join(map(str, shape))}, "
                    f"which cannot hold it for the product m, k, n = {asked}"
                )
    return list(dict.fromkeys(found))


def _wanted(call: str, sizes: list[int | None]) -> list[tuple[int | None, int | None]]:
    """Rows and columns of A and of B as they lie in L1."""
    m, k, n = sizes
    return [(k, m) if "_ta" in call else (m, k), (n, k) if "_tb" in call else (k, n)]


def _holds(shape: Shape, rows: int | None, columns: int | None) -> bool:
    """Whether the blocks cover a matrix, which tiles wider than it do; unknown sizes fit."""
    across, down, height, width = shape
    return (rows is None or down * height >= rows) and (
        columns is None or across * width >= columns
    )


def _shape(function: Function, value: str, at: int) -> Shape | None:
    """Static shape of the buffer behind views of unknown shape."""
    while True:
        position = function.definition(value, at)
        if position is None:
            return None
        text = function.lines[position].text
        shapes = _SHAPE.findall(text)
        if shapes:
            across, down, height, width = map(int, shapes[-1])
            return across, down, height, width
        operands = _VALUE.findall(text.partition(" = ")[2])
        if not operands:
            return None
        value = operands[1] if "arith.select" in text and len(operands) > 1 else operands[0]
        at = position


def _constant(function: Function, value: str, at: int) -> int | None:
    position = function.definition(value, at)
    found = _CONSTANT.match(function.lines[position].text) if position is not None else None
    return int(found[1]) if found else None
