"""What a kernel's TTIR and Linalg say about its matrix products and memory accesses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fa_triton.compile.regions import Function, functions

_DOT = re.compile(r"= tt\.dot(?:_scaled)? ")
_VALUE = re.compile(r"%[\w#]+")
# Operations that change layout, shape or type of a tile and compute nothing.
_PASS_THROUGH = (
    "tt.trans ",
    "tt.reshape ",
    "tt.expand_dims ",
    "tt.broadcast ",
    "tt.bitcast ",
    "tt.fp_to_fp ",
    "arith.extf ",
    "arith.truncf ",
    "arith.extsi ",
    "arith.extui ",
    "arith.sitofp ",
    "arith.uitofp ",
)


@dataclass(frozen=True)
class TtirFacts:
    """Facts read from TTIR and Linalg.

    Attributes:
        dots: Matrix products in the kernel.
        computed_operands: Operands of them that arithmetic produced (P of attention), one for each
            product that takes it; the others come straight from memory, at most cast or transposed.
        discrete_loops: Innermost loops that the lowering put around accesses it could not
            express as a block: one row or one element per step.
    """

    dots: int
    computed_operands: int
    discrete_loops: int


def read(ttir: str, linalg: str) -> TtirFacts:
    """Read the two modules of one kernel."""
    dots = 0
    computed = 0
    for function in functions(ttir):
        for at, line in enumerate(function.lines):
            if not _DOT.search(line.text):
                continue
            dots += 1
            for operand in _VALUE.findall(line.text.partition(" = ")[2])[:2]:
                _, position = _origin(function, operand, at)
                computed += position is None or "= tt.load " not in function.lines[position].text
    return TtirFacts(dots, computed, _discrete_loops(linalg))


def _origin(function: Function, value: str, at: int) -> tuple[str, int | None]:
    """Follow a tile back through casts and reshapes to what made it."""
    while True:
        position = function.definition(value, at)
        if position is None:
            return value, None
        operation = function.lines[position].text.partition(" = ")[2]
        operands = _VALUE.findall(operation)
        if operation.startswith("arith.select ") and len(operands) == 3:
            # A masked tile is a loaded tile, whichever side the fill value stands on.
            sides = [_origin(function, side, position) for side in operands[1:]]
            loaded = [
                side
                for side in sides
                if side[1] is not None and "= tt.load " in function.lines[side[1]].text
            ]
            return loaded[0] if loaded else (value, position)
        if not operation.startswith(_PASS_THROUGH) or not operands:
            return value, position
        value, at = operands[0], position


def _discrete_loops(linalg: str) -> int:
    innermost = 0
    for function in functions(linalg):
        seen: dict[int, bool] = {}
        for line in function.lines:
            region = line.region
            if region.is_loop and "ExtractedLoadOrStore" in region.attributes:
                inner = seen.setdefault(id(region), True)
                seen[id(region)] = inner and "= scf.for" not in line.text
            for outer in list(region.loops())[1:]:
                if id(outer) in seen or "ExtractedLoadOrStore" in outer.attributes:
                    seen[id(outer)] = False
        innermost += sum(seen.values())
    return innermost
