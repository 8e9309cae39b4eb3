"""Few rows against a large right side, as in decode: read B once, where it lies.

A is widened to f32 once. ``B[n, k]``: dot products along k; the lanes of 16 keys' sums are added up
in one tree. ``B[k, n]``: multiples of B's rows are added to C, which stays in registers over some
rows. Bound by reading B from memory, hence the prefetches: in the order of the addresses, and
beyond the end of B, where the next tile usually lies.
"""

from __future__ import annotations

from fa_triton.native.micro_builder import BYTES, F32, I32, LANES, Builder, splat
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.micro_operands import Operand, matrix, row_scale
from fa_triton.native.micro_transposes import add_lanes

_MAX_ROWS = 8
# Accumulators in registers; 16 of the 32 are left for operands.
_SUMS = 16
# Rows of B between two visits of C.
_ROW_BLOCK = 16
# Bytes between a load and the prefetch next to it.
_AHEAD = 2048


def fits(m: int, n: int, k: int) -> bool:
    """Whether there is a kernel for these sizes."""
    return m <= _MAX_ROWS and n % LANES == 0 and k % 32 == 0


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


def _dots(b: Builder, spec: Matmul, a: Operand, right: Operand, c: Operand) -> None:
    kept = Operand(b.scratch(spec.m * LANES * 64), str(LANES * 64), "f32")

    def block(n: str, _: list[str]) -> list[str]:
        # A loop, not sixteen copies: each load instruction then walks through memory in one small
        # stride, which the processor's prefetcher recognises.
        def one_key(key: str, _: list[str]) -> list[str]:
            def chunk(k: str, sums: list[str]) -> list[str]:
                address = right.at(b, b.add(n, key), k)
                sums = list(sums)
                for part in range(0, _chunk(spec), 32):
                    place = b.at(address, str(part * right.size))
                    for line in range(0, 32 * right.size, 64):
                        _prefetch(b, b.at(place, str(_AHEAD + line)))
                    for half, value in enumerate(_load_32(b, spec.element, place, True)):
                        for row in range(spec.m):
                            q = a.at(b, str(row), k)
                            q = b.load(F32, b.at(q, str(4 * part + 64 * half)))
                            sums[row] = b.fma(value, q, sums[row])
                return sums

            zero = [(F32, "zeroinitializer")] * spec.m
            for row, total in enumerate(b.loop(spec.k, _chunk(spec), chunk, zero)):
                b.store(F32, total, b.at(kept.at(b, str(row), "0"), b.times(key, 64)), 64)
            return []

        b.loop(LANES, 1, one_key)
        for row in range(spec.m):
            start = kept.at(b, str(row), "0")
            total = add_lanes(b, [b.load(F32, b.at(start, str(64 * i)), 64) for i in range(LANES)])
            place = c.at(b, str(row), n)
            if not spec.fresh:
                total = b.value(f"fadd {F32} {b.load(F32, place)}, {total}")
            b.store(F32, total, place)
        return []

    b.loop(spec.n, LANES, block)


def _chunk(spec: Matmul) -> int:
    """Elements of k without a branch."""
    return next(size for size in (128, 64, 32) if spec.k % size == 0)


def _prefetch(b: Builder, address: str) -> None:
    b.call(
        "void",
        "llvm.prefetch.p0",
        ("ptr", "i32 immarg", "i32 immarg", "i32 immarg"),
        f"ptr {address}, i32 0, i32 3, i32 1",
    )


def _multiples(b: Builder, spec: Matmul, a: Operand, right: Operand, c: Operand) -> None:
    sizes = (16, 8, 4, 2, 1)
    vectors = next(x for x in sizes if x * spec.m <= _SUMS and spec.n % (x * LANES) == 0)
    rows = _ROW_BLOCK
    places = [(row, vector) for row in range(spec.m) for vector in range(vectors)]

    def block(k0: str, _: list[str]) -> list[str]:
        def panel(n: str, _: list[str]) -> list[str]:
            addresses = [b.at(c.at(b, str(row), n), str(64 * vector)) for row, vector in places]
            starts = [b.load(F32, address) for address in addresses]

            def row_of_b(i: str, sums: list[str]) -> list[str]:
                k = b.add(k0, i)
                address = right.at(b, k, n)
                size = LANES * right.size
                _prefetch_block(b, spec, right, (b.add(k0, str(rows)), n, i), (rows, vectors))
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


def _prefetch_block(
    b: Builder,
    spec: Matmul,
    right: Operand,
    place: tuple[str, str, str],
    sizes: tuple[int, int],
) -> None:
    """Share of this step in the prefetch of the next block of rows, which goes row by row."""
    next_row, n, i = place
    rows, vectors = sizes
    panels = spec.n // (vectors * LANES)
    # Step number over the block: panels are visited one after the other.
    panel = b.value(f"udiv i64 {n}, {vectors * LANES}") if n != "0" else "0"
    step = b.add(b.times(panel, rows), i)
    row = b.value(f"udiv i64 {step}, {panels}") if panels > 1 else step
    part = b.value(f"urem i64 {step}, {panels}") if panels > 1 else "0"
    size = vectors * LANES * right.size
    start = b.add(b.times(b.add(next_row, row), right.pitch), b.times(part, size))
    address = b.at(right.address, start)
    for line in range(0, size, 64):
        _prefetch(b, b.at(address, str(line)))
