"""Few rows against a large right side, as in decode: read B once, where it lies.

A is widened to f32 once. ``B[n, k]``: dot products along k, 16 sums at a time in registers, whose
lanes are added up in one tree. ``B[k, n]``: multiples of B's rows are added to C, which stays in
registers over a block of rows. Bound by reading B from memory.
"""

from __future__ import annotations

from fa_triton.native.microkernels.builder import BYTES, F32, I32, LANES, Builder, splat
from fa_triton.native.microkernels.operands import Operand, matrix, row_scale
from fa_triton.native.microkernels.spec import Matmul
from fa_triton.native.microkernels.transposes import add_lanes

MAX_ROWS = 8
# Accumulators in registers; 16 of the 32 are left for operands.
_SUMS = 16
# Rows of B between two visits of C.
_ROW_BLOCK = 32
_AHEAD = 2048


def fits(m: int, n: int, k: int) -> bool:
    """Whether there is a kernel for these sizes."""
    return m <= MAX_ROWS and n % 16 == 0 and k % 32 == 0


def emit(b: Builder, spec: Matmul) -> None:
    """Emit the body of a kernel."""
    a, c = matrix(b, "a", spec.element), matrix(b, "c", "f32")
    right = matrix(b, "b", spec.element)
    wide = Operand(b.scratch(spec.m * spec.k * 4), str(spec.k * 4), "f32")
    _widen_rows(b, spec, a, wide)
    _prepare_sums(b, spec, c)
    if spec.transposed:
        _dots(b, spec, wide, right, c)
    else:
        _multiples(b, spec, wide, right, c)


def _prepare_sums(b: Builder, spec: Matmul, c: Operand) -> None:
    if not spec.scaled and (spec.transposed or not spec.fresh):
        return
    for row in range(spec.m):
        factor = row_scale(b, str(row)) if spec.scaled else ""

        def start(n: str, _: list[str], row: str = str(row), factor: str = factor) -> list[str]:
            place = c.at(b, row, n)
            value = "zeroinitializer"
            if factor:
                value = b.value(f"fmul {F32} {factor}, {b.load(F32, place)}")
            b.store(F32, value, place)
            return []

        b.loop(spec.n, LANES, start)


def _even_odd(b: Builder, address: str) -> list[str]:
    """32 bf16 as floats: those in even places, those in odd places."""
    pairs = b.load(I32, address, 2)
    even = b.value(f"shl {I32} {pairs}, {splat(I32, '16')}")
    odd = b.value(f"and {I32} {pairs}, {splat(I32, '-65536')}")
    return [b.value(f"bitcast {I32} {x} to {F32}") for x in (even, odd)]


def _load_32(b: Builder, element: str, address: str, split: bool) -> list[str]:
    """32 elements as two vectors; ``split`` bf16 come as even and odd ones."""
    if element == "bf16" and split:
        return _even_odd(b, address)
    second = b.at(address, str(LANES * BYTES[element]))
    return [b.widen(element, address), b.widen(element, second)]


def _widen_rows(b: Builder, spec: Matmul, a: Operand, wide: Operand) -> None:
    for row in range(spec.m):

        def chunk(k: str, _: list[str], row: str = str(row)) -> list[str]:
            halves = _load_32(b, spec.element, a.at(b, row, k), spec.transposed)
            place = wide.at(b, row, k)
            b.store(F32, halves[0], place)
            b.store(F32, halves[1], b.at(place, "64"))
            return []

        b.loop(spec.k, 32, chunk)


def _power_of_two(limit: int) -> int:
    return 1 << (limit.bit_length() - 1)


def _dots(b: Builder, spec: Matmul, a: Operand, right: Operand, c: Operand) -> None:
    keys = _power_of_two(_SUMS // spec.m)

    def block(n: str, _: list[str]) -> list[str]:
        first = right.at(b, n, "0")

        def chunk(k: str, sums: list[str]) -> list[str]:
            sums = list(sums)
            for key in range(keys):
                offset = b.add(b.times(right.pitch, key), b.times(k, right.size))
                address = b.at(first, offset)
                _prefetch(b, b.at(address, b.times(right.pitch, _keys_ahead(spec))))
                values = _load_32(b, spec.element, address, True)
                for row in range(spec.m):
                    place = a.at(b, str(row), k)
                    for half, value in enumerate(values):
                        q = b.load(F32, b.at(place, str(64 * half)))
                        number = row * keys + key
                        sums[number] = b.fma(value, q, sums[number])
            return sums

        zero = [(F32, "zeroinitializer")] * (keys * spec.m)
        sums = b.loop(spec.k, 32, chunk, zero)
        total = add_lanes(b, sums)
        for row in range(spec.m):
            lanes = range(row * keys, (row + 1) * keys)
            part = b.shuffle(F32, total, total, list(lanes))
            kind = f"<{keys} x float>"
            place = c.at(b, str(row), n)
            if not spec.fresh:
                part = b.value(f"fadd {kind} {b.load(kind, place)}, {part}")
            b.store(kind, part, place)
        return []

    b.loop(spec.n, keys, block)


def _keys_ahead(spec: Matmul) -> int:
    return max(_AHEAD // (spec.k * BYTES[spec.element]), 1)


def _prefetch(b: Builder, address: str) -> None:
    b.call(
        "void",
        "llvm.prefetch.p0",
        ("ptr", "i32 immarg", "i32 immarg", "i32 immarg"),
        f"ptr {address}, i32 0, i32 3, i32 1",
    )


def _multiples(b: Builder, spec: Matmul, a: Operand, right: Operand, c: Operand) -> None:
    vectors = min(_power_of_two(_SUMS // spec.m), spec.n // LANES)
    while spec.n % (vectors * LANES):
        vectors //= 2
    rows = _ROW_BLOCK if spec.k % _ROW_BLOCK == 0 else spec.k
    places = [(row, vector) for row in range(spec.m) for vector in range(vectors)]

    def block(k0: str, _: list[str]) -> list[str]:
        def panel(n: str, _: list[str]) -> list[str]:
            addresses = [
                b.at(c.at(b, str(row), n), str(64 * vector)) for row, vector in places
            ]
            starts = [b.load(F32, address) for address in addresses]

            def row_of_b(i: str, sums: list[str]) -> list[str]:
                k = b.add(k0, i)
                address = right.at(b, k, n)
                size = LANES * right.size
                for line in range(0, vectors * size, 64):
                    ahead = b.at(address, b.times(right.pitch, _rows_ahead(spec)))
                    _prefetch(b, b.at(ahead, str(line)))
                values = [
                    b.widen(spec.element, b.at(address, str(size * vector)))
                    for vector in range(vectors)
                ]
                factors = []
                for row in range(spec.m):
                    factors.append(b.broadcast(b.load("float", a.at(b, str(row), k))))
                return [
                    b.fma(factors[row], values[vector], total)
                    for (row, vector), total in zip(places, sums, strict=True)
                ]

            sums = b.loop(rows, 1, row_of_b, [(F32, start) for start in starts])
            for address, total in zip(addresses, sums, strict=True):
                b.store(F32, total, address)
            return []

        b.loop(spec.n, vectors * LANES, panel)
        return []

    b.loop(spec.k, rows, block)


def _rows_ahead(spec: Matmul) -> int:
    return max(_AHEAD // (spec.n * BYTES[spec.element]), 1)
