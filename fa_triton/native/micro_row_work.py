"""What the two forms of few rows share: their operands, and rows in groups."""

from __future__ import annotations

from dataclasses import dataclass

from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.micro_operands import Operand

# Rows that share a vector of B, by lanes: with 32 registers, and with 16.
_ROWS = {16: 8, 8: 4}
# Integers take two operations a vector to widen: it must serve more rows.
_ROWS_OF_INTEGERS = 8


@dataclass(frozen=True)
class RowWork:
    """Operands of a product with few rows.

    Attributes:
        spec: The product.
        a: A as f32, on the stack.
        right: B as it is stored.
        c: C.
    """

    spec: Matmul
    a: Operand
    right: Operand
    c: Operand


def shared_rows(spec: Matmul, lanes: int) -> int:
    """The most rows of A that should share a vector of B in registers."""
    return _ROWS_OF_INTEGERS if spec.integers else _ROWS[lanes]


def row_groups(m: int, most: int) -> list[range]:
    """Split rows into groups of almost equal size; the first is a largest one."""
    size = -(-m // -(-m // most))
    return [range(first, min(first + size, m)) for first in range(0, m, size)]
