"""``P = exp(S - m)`` row by row, rounded for the next matmul, and ``l += sum of the row``.

One pass over S instead of three. The exponential is that of math_functions on 16 floats, with the
instruction that multiplies by a power of two where there is one; results below the normal range are
0. Bound by its polynomial.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fa_triton.native.micro_builder import Builder, splat
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
# From 89 on the result is infinite; the largest that is not is that of 88.72.
_HIGHEST = "0x4056400000000000"
_LAST = "0x40562E42E0000000"
_INFINITY = "0x7FF0000000000000"
# 1.5 * 2^23: floats of this size are whole numbers.
_WHOLE = "0x4168000000000000"
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


def fits(n: int, lanes: int) -> bool:
    """Whether there is a kernel for these columns."""
    return n % lanes == 0


def emit(b: Builder, spec: ExpSum) -> None:
    """Emit the body of the kernel."""
    s, p = matrix(b, "s", "f32"), matrix(b, "p", spec.element)
    maxima, sums = vector(b, "m"), vector(b, "l")
    rows = b.lanes if spec.m % b.lanes == 0 else 1
    kept = b.scratch(b.size * rows)

    def block(first: str, _: list[str]) -> list[str]:
        def row(i: str, _: list[str]) -> list[str]:
            total = _row(b, spec, (s, p), maxima, b.add(first, i))
            if rows > 1:
                b.store(b.f32, total, b.at(kept, b.times(i, b.size)), b.size)
            else:
                _add_to(b, "float", b.horizontal_sum(total), b.at(sums, first, "float"))
            return []

        b.loop(rows, 1, row)
        if rows > 1:
            partial = [b.load(b.f32, b.at(kept, str(b.size * i)), b.size) for i in range(rows)]
            _add_to(b, b.f32, add_lanes(b, partial), b.at(sums, first, "float"))
        return []

    b.loop(spec.m, rows, block)


def _add_to(b: Builder, kind: str, value: str, place: str) -> None:
    b.store(kind, b.value(f"fadd {kind} {b.load(kind, place)}, {value}"), place)


def _row(b: Builder, spec: ExpSum, matrices: tuple[Operand, Operand], maxima: str, row: str) -> str:
    """One row; returns the sums of its lanes."""
    s, p = matrices
    maximum = b.broadcast(b.load("float", b.at(maxima, row, "float")))
    step = b.lanes * (4 if spec.n % (4 * b.lanes) == 0 else 1)

    def chunk(n: str, totals: list[str]) -> list[str]:
        total = totals[0]
        source, target = s.at(b, row, n), p.at(b, row, n)
        for part in range(step // b.lanes):
            value = b.load(b.f32, b.at(source, str(b.size * part)))
            result = _exp(b, b.value(f"fsub {b.f32} {value}, {maximum}"))
            total = b.value(f"fadd {b.f32} {total}, {result}")
            b.narrow(spec.element, result, b.at(target, str(b.lanes * p.size * part)))
        return [total]

    return b.loop(spec.n, step, chunk, [(b.f32, "zeroinitializer")])[0]


def _exp(b: Builder, x: str) -> str:
    f32 = b.f32
    high = splat(f32, _HIGHEST)
    beyond = b.value(f"fcmp ogt {f32} {x}, {high}")
    x = b.value(f"select {b.i1} {beyond}, {f32} {high}, {f32} {x}")
    normal = b.value(f"fcmp uge {f32} {x}, {splat(f32, _LOWEST)}")
    t = b.value(f"fmul {f32} {x}, {splat(f32, '0x3FF7154760000000')}")
    if b.lanes == 16:
        return _scale_by_instruction(b, x, t, normal)
    return _scale_by_integers(b, x, t, normal)


def _scale_by_instruction(b: Builder, x: str, t: str, normal: str) -> str:
    """``e^x`` with AVX-512; ``t`` is x in powers of two."""
    f32 = b.f32
    lanes = b.value(f"bitcast {b.i1} {normal} to i16")
    n = b.call(f32, "llvm.rint.v16f32", (f32,), f"{f32} {t}")
    return b.call(
        f32,
        "llvm.x86.avx512.mask.scalef.ps.512",
        (f32, f32, f32, "i16", "i32 immarg"),
        f"{f32} {_fraction(b, x, n)}, {f32} {n}, {f32} zeroinitializer, i16 {lanes}, i32 4",
    )


def _scale_by_integers(b: Builder, x: str, t: str, normal: str) -> str:
    """``e^x`` by an addition to the exponent's bits."""
    f32, i32 = b.f32, b.i32
    # The sum is rounded to a whole number n, which its lowest bits hold.
    whole = b.value(f"fadd {f32} {t}, {splat(f32, _WHOLE)}")
    n = b.value(f"fsub {f32} {whole}, {splat(f32, _WHOLE)}")
    bits = b.value(f"bitcast {f32} {whole} to {i32}")
    exponent = b.value(f"shl {i32} {bits}, {splat(i32, '23')}")
    y = b.value(f"bitcast {f32} {_fraction(b, x, n)} to {i32}")
    y = b.value(f"bitcast {i32} {b.value(f'add {i32} {y}, {exponent}')} to {f32}")
    y = b.value(f"select {b.i1} {normal}, {f32} {y}, {f32} zeroinitializer")
    beyond = b.value(f"fcmp ogt {f32} {x}, {splat(f32, _LAST)}")
    return b.value(f"select {b.i1} {beyond}, {f32} {splat(f32, _INFINITY)}, {f32} {y}")


def _fraction(b: Builder, x: str, n: str) -> str:
    """``e^x / 2^n`` by a polynomial."""
    f32 = b.f32
    r = b.fma(n, splat(f32, "0xBFE6300000000000"), x)
    r = b.fma(n, splat(f32, "0x3F2BD01060000000"), r)
    y = splat(f32, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        y = b.fma(y, r, splat(f32, coefficient))
    square = b.value(f"fmul {f32} {r}, {r}")
    y = b.fma(y, square, r)
    return b.value(f"fadd {f32} {y}, {splat(f32, '1.0')}")
