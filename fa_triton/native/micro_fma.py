"""Matmuls by fused multiply-adds, sums in registers over all of k.

B is copied once into panels of two vectors, widened and transposed on the way; A is read in place
if it is f32. A block of rows and a panel has half of the registers for its sums: 8 rows with
512-bit vectors, 4 with 256-bit ones. Bound by the multiply-adds themselves.
"""

from __future__ import annotations

from fa_triton.native.micro_builder import Builder
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.micro_operands import Operand, matrix, row_scale
from fa_triton.native.micro_transposes import transpose

# Rows of a block, by lanes.
_ROWS = {16: 8, 8: 4}
# Steps of k without a branch.
_UNROLL = 4
_SCRATCH_LIMIT = 1 << 20


def fits(m: int, n: int, k: int, lanes: int) -> bool:
    """Whether there is a kernel for these sizes."""
    return (
        m % _ROWS[lanes] == 0
        and n % lanes == 0
        and k % lanes == 0
        and 4 * k * (m + n) <= _SCRATCH_LIMIT
    )


def emit(b: Builder, spec: Matmul) -> None:
    """Emit the body of a kernel."""
    a, right = matrix(b, "a", spec.element), matrix(b, "b", spec.element)
    c = matrix(b, "c", "f32")
    width = 2 if spec.n % (2 * b.lanes) == 0 else 1
    panels = Operand(b.scratch(spec.n * spec.k * 4), str(b.size * width), "f32")
    left = a
    if spec.element != "f32":
        left = Operand(b.scratch(spec.m * spec.k * 4), str(4 * spec.k), "f32")
        _widen(b, spec, a, left)
    if spec.transposed:
        _pack_transposed(b, spec, right, panels, width)
    else:
        _pack(b, spec, right, panels, width)
    _multiply(b, spec, left, panels, c, width)


def _widen(b: Builder, spec: Matmul, a: Operand, left: Operand) -> None:
    def row(m: str, _: list[str]) -> list[str]:
        def chunk(k: str, _: list[str]) -> list[str]:
            b.store(b.f32, b.widen(spec.element, a.at(b, m, k)), left.at(b, m, k), b.size)
            return []

        return b.loop(spec.k, b.lanes, chunk)

    b.loop(spec.m, 1, row)


def _panel(b: Builder, spec: Matmul, panels: Operand, n: str) -> Operand:
    """The panel that starts at column ``n``: k rows of its columns."""
    return Operand(b.at(panels.address, b.times(n, 4 * spec.k)), panels.pitch, "f32")


def _pack(b: Builder, spec: Matmul, right: Operand, panels: Operand, width: int) -> None:
    def columns(n: str, _: list[str]) -> list[str]:
        panel = _panel(b, spec, panels, n)

        def row(k: str, _: list[str]) -> list[str]:
            source, target = right.at(b, k, n), panel.at(b, k, "0")
            for part in range(width):
                value = b.widen(spec.element, b.at(source, str(part * b.lanes * right.size)))
                b.store(b.f32, value, b.at(target, str(b.size * part)), b.size)
            return []

        return b.loop(spec.k, 1, row)

    b.loop(spec.n, b.lanes * width, columns)


def _pack_transposed(b: Builder, spec: Matmul, right: Operand, panels: Operand, width: int) -> None:
    def columns(n: str, _: list[str]) -> list[str]:
        panel = _panel(b, spec, panels, n)

        def block(k: str, _: list[str]) -> list[str]:
            for part in range(width):
                address = right.at(b, b.add(n, str(part * b.lanes)), k)
                rows = []
                for _row in range(b.lanes):
                    rows.append(b.widen(spec.element, address))
                    address = b.at(address, right.pitch)
                target = panel.at(b, k, str(part * b.lanes))
                for step, row in enumerate(transpose(b, b.f32, rows)):
                    b.store(b.f32, row, b.at(target, b.times(panel.pitch, step)), b.size)
            return []

        return b.loop(spec.k, b.lanes, block)

    b.loop(spec.n, b.lanes * width, columns)


def _multiply(
    b: Builder, spec: Matmul, left: Operand, panels: Operand, c: Operand, width: int
) -> None:
    block = _ROWS[b.lanes]
    places = [(row, part) for row in range(block) for part in range(width)]

    def columns(n: str, _: list[str]) -> list[str]:
        panel = _panel(b, spec, panels, n)

        def rows(m: str, _: list[str]) -> list[str]:
            here = [b.add(m, str(row)) for row in range(block)]
            sums = [b.at(c.at(b, here[row], n), str(b.size * part)) for row, part in places]
            starts = ["zeroinitializer"] * len(places)
            if not spec.fresh:
                starts = [b.load(b.f32, place) for place in sums]
            if spec.scaled:
                factors = [row_scale(b, row) for row in here]
                starts = [
                    b.value(f"fmul {b.f32} {factors[row]}, {start}")
                    for (row, _part), start in zip(places, starts, strict=True)
                ]

            def step(k: str, totals: list[str]) -> list[str]:
                for depth in range(_UNROLL):
                    now = b.add(k, str(depth))
                    source = panel.at(b, now, "0")
                    values = [
                        b.load(b.f32, b.at(source, str(b.size * part)), b.size)
                        for part in range(width)
                    ]
                    factors = [b.broadcast(b.load("float", left.at(b, row, now))) for row in here]
                    totals = [
                        b.fma(factors[row], values[part], total)
                        for (row, part), total in zip(places, totals, strict=True)
                    ]
                return totals

            totals = b.loop(spec.k, _UNROLL, step, [(b.f32, start) for start in starts])
            for place, total in zip(sums, totals, strict=True):
                b.store(b.f32, total, place)
            return []

        return b.loop(spec.m, block, rows)

    b.loop(spec.n, b.lanes * width, columns)
