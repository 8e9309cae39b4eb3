"""Few rows against a large right side, as in decode: read B once, where it lies.

A is widened to f32 once. ``B[n, k]``: dot products along k; the lanes of as many keys' sums as a
vector has lanes are added up in one tree. ``B[k, n]``: multiples of B's rows are added to C, which
stays in registers over some rows. Bound by reading B from memory, hence the prefetches: in the
order of the addresses, and beyond the end of B, where the next tile usually lies.
"""

from __future__ import annotations

from fa_triton.native.micro_builder import BYTES, Builder, splat
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.micro_operands import Operand, matrix, row_scale
from fa_triton.native.micro_transposes import add_lanes

_MAX_ROWS = 8
# Sums of one product along k for all rows, by lanes: enough multiply-adds at a time to hide their
# latency. 512-bit vectors wait for memory, not for them.
_CHAINS = {16: 1, 8: 8}
# Sums of multiples that stay in registers, by lanes: of 32 and of 16.
_SUMS = {16: 16, 8: 8}
# Bytes of a cache line.
_LINE = 64
# Rows of B between two visits of C.
_ROW_BLOCK = 16
# Bytes between a load and the prefetch next to it.
_AHEAD = 2048


def fits(m: int, n: int, k: int, lanes: int) -> bool:
    """Whether there is a kernel for these sizes."""
    return m <= _MAX_ROWS and n % lanes == 0 and k % (2 * lanes) == 0


def emit(b: Builder, spec: Matmul) -> None:
    """Emit the body of a kernel."""
    a, c = matrix(b, "a", spec.element), matrix(b, "c", "f32")
    right = matrix(b, "b", spec.right)
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
                value = b.value(f"fmul {b.f32} {factor}, {b.load(b.f32, place)}")
            b.store(b.f32, value, place)
            return []

        b.loop(spec.n, b.lanes, start)


def _even_odd(b: Builder, address: str) -> list[str]:
    """bf16 for two vectors as floats: those in even places, those in odd places."""
    pairs = b.load(b.i32, address, 2)
    even = b.value(f"shl {b.i32} {pairs}, {splat(b.i32, '16')}")
    odd = b.value(f"and {b.i32} {pairs}, {splat(b.i32, '-65536')}")
    return [b.value(f"bitcast {b.i32} {x} to {b.f32}") for x in (even, odd)]


def _is_split(spec: Matmul) -> bool:
    """Whether products along k take the elements in even places apart, which bf16 makes cheap."""
    return spec.transposed and spec.element == spec.right == "bf16"


def _load_two(b: Builder, element: str, address: str, is_split: bool) -> list[str]:
    """Consecutive elements as two vectors: the first and second half, or even and odd places."""
    if is_split:
        return _even_odd(b, address)
    second = b.at(address, str(b.lanes * BYTES[element]))
    return [b.widen(element, address), b.widen(element, second)]


def _widen_rows(b: Builder, spec: Matmul, a: Operand, wide: Operand) -> None:
    for row in range(spec.m):

        def chunk(k: str, _: list[str], row: str = str(row)) -> list[str]:
            halves = _load_two(b, spec.element, a.at(b, row, k), _is_split(spec))
            place = wide.at(b, row, k)
            b.store(b.f32, halves[0], place)
            b.store(b.f32, halves[1], b.at(place, str(b.size)))
            return []

        b.loop(spec.k, 2 * b.lanes, chunk)


def _dots(b: Builder, spec: Matmul, a: Operand, right: Operand, c: Operand) -> None:
    kept = Operand(b.scratch(spec.m * b.lanes * b.size), str(b.lanes * b.size), "f32")

    def block(n: str, _: list[str]) -> list[str]:
        # A loop, not as many copies: each load instruction then walks through memory in one small
        # stride, which the processor's prefetcher recognises.
        def one_key(key: str, _: list[str]) -> list[str]:
            totals = _one_dot(b, spec, a, right.at(b, b.add(n, key), "0"))
            for row, total in enumerate(totals):
                b.store(b.f32, total, b.at(kept.at(b, str(row), "0"), b.times(key, b.size)), b.size)
            return []

        b.loop(b.lanes, 1, one_key)
        for row in range(spec.m):
            start = kept.at(b, str(row), "0")
            places = [b.at(start, str(b.size * i)) for i in range(b.lanes)]
            total = add_lanes(b, [b.load(b.f32, place, b.size) for place in places])
            place = c.at(b, str(row), n)
            if not spec.fresh:
                total = b.value(f"fadd {b.f32} {b.load(b.f32, place)}, {total}")
            b.store(b.f32, total, place)
        return []

    b.loop(spec.n, b.lanes, block)


def _one_dot(b: Builder, spec: Matmul, a: Operand, place: str) -> list[str]:
    """Products of every row of A with the row of B at ``place``, lanes not yet added up."""
    chains = max(1, _CHAINS[b.lanes] // spec.m)
    size, step = BYTES[spec.right], 2 * b.lanes

    def chunk(k: str, sums: list[str]) -> list[str]:
        address = b.at(place, b.times(k, size))
        sums = list(sums)
        for number, part in enumerate(range(0, _chunk(spec), step)):
            start, end = part * size, (part + step) * size
            here = b.at(address, str(start))
            for line in range(-(-start // _LINE) * _LINE, end, _LINE):
                _prefetch(b, b.at(here, str(_AHEAD + line - start)))
            for half, value in enumerate(_load_two(b, spec.right, here, _is_split(spec))):
                chain = (2 * number + half) % chains
                for row in range(spec.m):
                    q = b.at(a.at(b, str(row), k), str(4 * part + b.size * half))
                    at = chain * spec.m + row
                    sums[at] = b.fma(value, b.load(b.f32, q), sums[at])
        return sums

    zero = [(b.f32, "zeroinitializer")] * (chains * spec.m)
    sums = b.loop(spec.k, _chunk(spec), chunk, zero)
    while len(sums) > spec.m:
        half = len(sums) // 2
        sums = [
            b.value(f"fadd {b.f32} {x}, {y}") for x, y in zip(sums[:half], sums[half:], strict=True)
        ]
    return sums


def _chunk(spec: Matmul) -> int:
    """Elements of k without a branch."""
    return next(size for size in (128, 64, 32, 16) if spec.k % size == 0)


def _prefetch(b: Builder, address: str) -> None:
    b.call(
        "void",
        "llvm.prefetch.p0",
        ("ptr", "i32 immarg", "i32 immarg", "i32 immarg"),
        f"ptr {address}, i32 0, i32 3, i32 1",
    )


def _multiples(b: Builder, spec: Matmul, a: Operand, right: Operand, c: Operand) -> None:
    sizes = (16, 8, 4, 2, 1)
    vectors = next(x for x in sizes if x * spec.m <= _SUMS[b.lanes] and spec.n % (x * b.lanes) == 0)
    rows = _ROW_BLOCK
    places = [(row, vector) for row in range(spec.m) for vector in range(vectors)]

    def block(k0: str, _: list[str]) -> list[str]:
        def panel(n: str, _: list[str]) -> list[str]:
            addresses = [b.at(c.at(b, str(row), n), str(b.size * vector)) for row, vector in places]
            starts = [b.load(b.f32, address) for address in addresses]

            def row_of_b(i: str, sums: list[str]) -> list[str]:
                k = b.add(k0, i)
                address = right.at(b, k, n)
                size = b.lanes * right.size
                _prefetch_block(b, spec, right, (b.add(k0, str(rows)), n, i), (rows, vectors))
                values = [
                    b.widen(spec.right, b.at(address, str(size * vector)))
                    for vector in range(vectors)
                ]
                factors = []
                for row in range(spec.m):
                    factors.append(b.broadcast(b.load("float", a.at(b, str(row), k))))
                return [
                    b.fma(factors[row], values[vector], total)
                    for (row, vector), total in zip(places, sums, strict=True)
                ]

            sums = b.loop(rows, 1, row_of_b, [(b.f32, start) for start in starts])
            for address, total in zip(addresses, sums, strict=True):
                b.store(b.f32, total, address)
            return []

        b.loop(spec.n, vectors * b.lanes, panel)
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
    panels = spec.n // (vectors * b.lanes)
    # Step number over the block: panels are visited one after the other.
    panel = b.value(f"udiv i64 {n}, {vectors * b.lanes}") if n != "0" else "0"
    step = b.add(b.times(panel, rows), i)
    row = b.value(f"udiv i64 {step}, {panels}") if panels > 1 else step
    part = b.value(f"urem i64 {step}, {panels}") if panels > 1 else "0"
    size = vectors * b.lanes * right.size
    start = b.add(b.times(b.add(next_row, row), right.pitch), b.times(part, size))
    address = b.at(right.address, start)
    for line in range(0, size, 64):
        _prefetch(b, b.at(address, str(line)))
