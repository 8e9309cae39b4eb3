"""``P = exp(S - m)`` row by row, rounded for the next matmul, and ``l += sum of the row``.

One pass over S instead of three. The exponential is that of math_functions on 16 floats, with the
instruction that multiplies by a power of two; results below the normal range are 0. Bound by its
polynomial.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fa_triton.native.micro_builder import F32, LANES, Builder, splat
from fa_triton.native.micro_operands import (
    Operand,
    matrix,
    matrix_parameters,
    vector,
    vector_parameters,
)
from fa_triton.native.micro_transposes import add_lanes

_NAME = re.compile(r"fa_exp_sum_(\d+)x(\d+)_(bf16|f16|f32)")
# Below -87.33 the result would be denormal, which costs a microcode assist: it is 0.
_LOWEST = "0xC055D52000000000"
# From 89 on the result is infinite.
_HIGHEST = "0x4056400000000000"
_POLYNOMIAL = (
    "0x3F2A0D2CE0000000",
    "0x3F56E879C0000000",
    "0x3F81112100000000",
    "0x3FA5553820000000",
    "0x3FC5555540000000",
    "5.000000e-01",
)


@dataclass(frozen=True)
class ExpSum:
    """The kernel's sizes and the element type of P."""

    m: int
    n: int
    element: str

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"fa_exp_sum_{self.m}x{self.n}_{self.element}"

    @property
    def parameters(self) -> str:
        """Parameter list: S, m, P, l."""
        lists = (
            matrix_parameters("s"),
            vector_parameters("m"),
            matrix_parameters("p"),
            vector_parameters("l"),
        )
        return ", ".join(lists)

    @staticmethod
    def parse(name: str) -> ExpSum:
        """The kernel of a name."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"`name` must be that of an exp_sum micro-kernel, got {name!r}")
        return ExpSum(int(match[1]), int(match[2]), match[3])


def fits(n: int) -> bool:
    """Whether there is a kernel for these columns."""
    return n % LANES == 0


def emit(b: Builder, spec: ExpSum) -> None:
    """Emit the body of the kernel."""
    s, p = matrix(b, "s", "f32"), matrix(b, "p", spec.element)
    maxima, sums = vector(b, "m"), vector(b, "l")
    rows = LANES if spec.m % LANES == 0 else 1
    kept = b.scratch(64 * rows)

    def block(first: str, _: list[str]) -> list[str]:
        def row(i: str, _: list[str]) -> list[str]:
            total = _row(b, spec, (s, p), maxima, b.add(first, i))
            if rows > 1:
                b.store(F32, total, b.at(kept, b.times(i, 64)), 64)
            else:
                _add_to(b, "float", b.horizontal_sum(total), b.at(sums, first, "float"))
            return []

        b.loop(rows, 1, row)
        if rows > 1:
            partial = [b.load(F32, b.at(kept, str(64 * i)), 64) for i in range(rows)]
            _add_to(b, F32, add_lanes(b, partial), b.at(sums, first, "float"))
        return []

    b.loop(spec.m, rows, block)


def _add_to(b: Builder, kind: str, value: str, place: str) -> None:
    b.store(kind, b.value(f"fadd {kind} {b.load(kind, place)}, {value}"), place)


def _row(b: Builder, spec: ExpSum, matrices: tuple[Operand, Operand], maxima: str, row: str) -> str:
    """One row; returns the sums of its lanes."""
    s, p = matrices
    maximum = b.broadcast(b.load("float", b.at(maxima, row, "float")))
    step = LANES * (4 if spec.n % (4 * LANES) == 0 else 1)

    def chunk(n: str, totals: list[str]) -> list[str]:
        total = totals[0]
        source, target = s.at(b, row, n), p.at(b, row, n)
        for part in range(step // LANES):
            value = b.load(F32, b.at(source, str(64 * part)))
            result = _exp(b, b.value(f"fsub {F32} {value}, {maximum}"))
            total = b.value(f"fadd {F32} {total}, {result}")
            b.narrow(spec.element, result, b.at(target, str(LANES * p.size * part)))
        return [total]

    return b.loop(spec.n, step, chunk, [(F32, "zeroinitializer")])[0]


def _exp(b: Builder, x: str) -> str:
    high = splat(F32, _HIGHEST)
    beyond = b.value(f"fcmp ogt {F32} {x}, {high}")
    x = b.value(f"select <16 x i1> {beyond}, {F32} {high}, {F32} {x}")
    normal = b.value(f"fcmp uge {F32} {x}, {splat(F32, _LOWEST)}")
    lanes = b.value(f"bitcast <16 x i1> {normal} to i16")
    t = b.value(f"fmul {F32} {x}, {splat(F32, '0x3FF7154760000000')}")
    n = b.call(F32, "llvm.rint.v16f32", (F32,), f"{F32} {t}")
    r = b.fma(n, splat(F32, "0xBFE6300000000000"), x)
    r = b.fma(n, splat(F32, "0x3F2BD01060000000"), r)
    y = splat(F32, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        y = b.fma(y, r, splat(F32, coefficient))
    square = b.value(f"fmul {F32} {r}, {r}")
    y = b.fma(y, square, r)
    y = b.value(f"fadd {F32} {y}, {splat(F32, '1.0')}")
    return b.call(
        F32,
        "llvm.x86.avx512.mask.scalef.ps.512",
        (F32, F32, F32, "i16", "i32 immarg"),
        f"{F32} {y}, {F32} {n}, {F32} zeroinitializer, i16 {lanes}, i32 4",
    )
