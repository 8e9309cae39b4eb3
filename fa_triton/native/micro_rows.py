"""Few rows against a large right side, as in decode: B is read where it lies, never packed.

A is widened to f32 once. ``B[n, k]`` takes dot products along k (``micro_dots``), ``B[k, n]``
multiples of B's rows (``micro_multiples``). Bound by reading B from memory, hence the prefetches in
the order of the addresses; with 256-bit vectors and some rows by the multiply-adds.
"""

from __future__ import annotations

from fa_triton.native import micro_dots, micro_multiples
from fa_triton.native.micro_builder import Builder
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.micro_operands import Operand, matrix
from fa_triton.native.micro_row_work import RowWork

# Rows up to which this is faster than a packed B, by lanes; beyond 8 of them only where B has so
# many rows and columns.
_FEW_ROWS = 8
_MAX_ROWS = {16: 8, 8: 16}
_LARGE = 64
_SCRATCH_LIMIT = 1 << 20


def fits(m: int, n: int, k: int, lanes: int) -> bool:
    """Whether there is a kernel for these sizes."""
    return (
        m <= (_MAX_ROWS[lanes] if min(n, k) >= _LARGE else _FEW_ROWS)
        and n % lanes == 0
        and k % (2 * lanes) == 0
        and 4 * m * (n + k) <= _SCRATCH_LIMIT
    )


def emit(b: Builder, spec: Matmul) -> None:
    """Emit the body of a kernel."""
    a, c = matrix(b, "a", spec.element), matrix(b, "c", "f32")
    right = matrix(b, "b", spec.right)
    wide = Operand(b.scratch(spec.m * spec.k * 4), str(spec.k * 4), "f32")
    work = RowWork(spec, wide, right, c)
    if spec.transposed:
        _widen_rows(b, spec, a, wide, micro_dots.is_split(spec))
        micro_dots.emit(b, work)
    else:
        _widen_rows(b, spec, a, wide, is_split=False)
        micro_multiples.emit(b, work)


def _widen_rows(b: Builder, spec: Matmul, a: Operand, wide: Operand, is_split: bool) -> None:
    for row in range(spec.m):

        def chunk(k: str, _: list[str], row: str = str(row)) -> list[str]:
            halves = b.widen_two(spec.element, a.at(b, row, k), is_split)
            place = wide.at(b, row, k)
            b.store(b.f32, halves[0], place)
            b.store(b.f32, halves[1], b.at(place, str(b.size)))
            return []

        b.loop(spec.k, 2 * b.lanes, chunk)
