"""Matmuls in the matrix unit of x86 (AMX), which multiplies bf16 pairs and adds up in f32.

bf16 operands are its own format. An fp16 number is the sum of two bf16 pieces, exactly, and all
four products of pieces are added, small ones first: products stay exact and the sums see fewer
roundings than a chain of fused multiply-adds. Pieces of infinities would make NaN, so a split
operand that is not finite takes a plain loop. (fp32 would take three pieces and nine products:
slower than :mod:`micro_fma`.)

Tiles hold 16 rows of 64 bytes. A is read as it is (or as split rows). B must come with the two
rows of a pair interleaved: for ``B[k, n]`` rows are merged, for ``B[n, k]`` pairs lie side by side
already and 32-bit words are transposed, 16x16 at a time. Bound by that packing and by tile loads.
"""

from __future__ import annotations

from fa_triton.native.micro_builder import Builder, splat
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.micro_operands import Operand, matrix, row_scale
from fa_triton.native.micro_transposes import transpose

_PIECES = {"bf16": 1, "f16": 2}
# Elements of k in a tile row.
_DEPTH = 32
_HALVES = "<32 x i16>"
LANES = 16
F32 = "<16 x float>"
I32 = "<16 x i32>"
_UPPER = splat(I32, "-65536")
_INFINITY = splat(I32, str(0x7F800000))
# Tile registers: 2x2 sums, two tiles of A, two of B.
_SUM, _LEFT, _RIGHT = 0, 4, 6
_SCRATCH_LIMIT = 1 << 20


def fits(m: int, n: int, k: int) -> bool:
    """Whether there is a kernel for these sizes."""
    scratch = 2 * len(_PIECES) * k * (m + 2 * n)
    return m % 16 == 0 and n % 16 == 0 and k % _DEPTH == 0 and scratch <= _SCRATCH_LIMIT


def emit(b: Builder, spec: Matmul) -> None:
    """Emit the body of a kernel."""
    pieces = _PIECES[spec.element]
    a, right = matrix(b, "a", spec.element), matrix(b, "b", spec.element)
    c = matrix(b, "c", "f32")
    config = b.scratch(64)
    packed = b.scratch(pieces * spec.n * spec.k * 2)
    sums = b.scratch(4 * 16 * 64)
    lefts, rows_of_b, spread = [a], [right], "zeroinitializer"
    if pieces > 1:
        lefts = _piece_places(b, spec.m, spec.k, pieces)
        if spec.transposed:
            rows_of_b = _piece_places(b, spec.n, spec.k, pieces)
        spread = _split_rows(b, a, spec.m, spec.k, lefts, spread)
        if spec.transposed:
            spread = _split_rows(b, right, spec.n, spec.k, rows_of_b, spread)
    if spec.transposed:
        _transpose_words(b, spec, rows_of_b, packed)
    else:
        spread = _merge_rows(b, spec, right, packed, spread)
    if pieces > 1:
        _plain_unless_finite(b, spec, spread, (a, right, c))
    _configure(b, config)
    _multiply(b, spec, lefts, packed, sums, c)
    b.call("void", "llvm.x86.tilerelease", (), "")


def _piece_places(b: Builder, rows: int, columns: int, pieces: int) -> list[Operand]:
    pitch = 2 * columns
    return [Operand(b.scratch(rows * pitch), str(pitch), "bf16") for _ in range(pieces)]


def _split(b: Builder, value: str, pieces: int) -> list[str]:
    """Pieces of 16 floats, as words: the upper half is the bf16, the lower half is undefined."""
    words = []
    for piece in range(pieces):
        word = b.value(f"bitcast {F32} {value} to {I32}")
        words.append(word)
        if piece + 1 < pieces:
            upper = b.value(f"and {I32} {word}, {_UPPER}")
            rounded = b.value(f"bitcast {I32} {upper} to {F32}")
            value = b.value(f"fsub {F32} {value}, {rounded}")
    return words


def _largest(b: Builder, spread: str, word: str) -> str:
    """Running maximum of exponents; they are all ones in what is not finite."""
    exponent = b.value(f"and {I32} {word}, {_INFINITY}")
    return b.call(I32, "llvm.umax.v16i32", (I32, I32), f"{I32} {spread}, {I32} {exponent}")


def _split_rows(
    b: Builder, source: Operand, rows: int, columns: int, places: list[Operand], spread: str
) -> str:
    def row(m: str, carried: list[str]) -> list[str]:
        def chunk(k: str, carried: list[str]) -> list[str]:
            spread = carried[0]
            address = source.at(b, m, k)
            halves = []
            for half in range(2):
                value = b.widen(source.element, b.at(address, str(half * LANES * source.size)))
                words = _split(b, value, len(places))
                spread = _largest(b, spread, words[0])
                halves.append([b.value(f"bitcast {I32} {word} to {_HALVES}") for word in words])
            for first, second, place in zip(*halves, places, strict=True):
                upper = b.shuffle(_HALVES, first, second, range(1, 64, 2))
                b.store(_HALVES, upper, place.at(b, m, k), 64)
            return [spread]

        return b.loop(columns, _DEPTH, chunk, [(I32, carried[0])])

    return b.loop(rows, 1, row, [(I32, spread)])[0]


def _packed_at(b: Builder, spec: Matmul, packed: str, piece: int, n: str, pair: str) -> str:
    """Address of a pair of rows in 16 packed columns: [piece][n / 16][k / 2][16] words."""
    offset = b.add(b.times(n, spec.k * 2), b.times(pair, 64))
    return b.at(b.at(packed, str(piece * spec.n * spec.k * 2)), offset)


def _merge_rows(b: Builder, spec: Matmul, source: Operand, packed: str, spread: str) -> str:
    """Interleave rows 2i and 2i + 1 of ``B[k, n]``."""
    pieces = _PIECES[spec.element]

    def pair_of_rows(pair: str, carried: list[str]) -> list[str]:
        first = source.at(b, b.times(pair, 2), "0")
        second = b.at(first, source.pitch)

        def columns(n: str, carried: list[str]) -> list[str]:
            spread = carried[0]
            offset = b.times(n, source.size)
            rows = [b.at(first, offset), b.at(second, offset)]
            if pieces == 1:
                kind = "<16 x i16>"
                low, high = (b.load(kind, row, 2) for row in rows)
                lanes = [lane // 2 + 16 * (lane % 2) for lane in range(32)]
                merged = [b.shuffle(kind, low, high, lanes)]
                store = _HALVES
            else:
                values = [b.widen(source.element, row) for row in rows]
                low, high = (_split(b, value, pieces) for value in values)
                spread = _largest(b, _largest(b, spread, low[0]), high[0])
                merged, store = [], I32
                for x, y in zip(low, high, strict=True):
                    lower = b.value(f"lshr {I32} {x}, {splat(I32, '16')}")
                    upper = b.value(f"and {I32} {y}, {_UPPER}")
                    merged.append(b.value(f"or {I32} {lower}, {upper}"))
            for piece, value in enumerate(merged):
                b.store(store, value, _packed_at(b, spec, packed, piece, n, pair), 64)
            return [spread]

        return b.loop(spec.n, LANES, columns, [(I32, carried[0])])

    return b.loop(spec.k // 2, 1, pair_of_rows, [(I32, spread)])[0]


def _transpose_words(b: Builder, spec: Matmul, pieces: list[Operand], packed: str) -> None:
    """Transpose the pairs of ``B[n, k]``, 16 rows by 16 pairs at a time."""

    def rows(n: str, _: list[str]) -> list[str]:
        def pairs(k: str, _: list[str]) -> list[str]:
            for number, piece in enumerate(pieces):
                address = piece.at(b, n, k)
                words = []
                for _row in range(LANES):
                    words.append(b.load(I32, address, 2))
                    address = b.at(address, piece.pitch)
                words = transpose(b, I32, words)
                half = b.value(f"lshr i64 {k}, 1") if k != "0" else "0"
                place = _packed_at(b, spec, packed, number, n, half)
                for pair, word in enumerate(words):
                    b.store(I32, word, b.at(place, str(64 * pair)), 64)
            return []

        b.loop(spec.k, _DEPTH, pairs)
        return []

    b.loop(spec.n, LANES, rows)


def _configure(b: Builder, config: str) -> None:
    """All eight tiles: 16 rows of 64 bytes."""
    b.store("<64 x i8>", "zeroinitializer", config, 64)
    b.store("i8", "1", config, 1)
    b.store("<8 x i16>", splat("<8 x i16>", "64"), b.at(config, "16"), 16)
    b.store("<8 x i8>", splat("<8 x i8>", "16"), b.at(config, "48"), 16)
    b.call("void", "llvm.x86.ldtilecfg", ("ptr",), f"ptr {config}")


def _load_tile(b: Builder, tile: int, address: str, pitch: str) -> None:
    b.call(
        "void",
        "llvm.x86.tileloadd64",
        ("i8 immarg", "ptr", "i64"),
        f"i8 {tile}, ptr {address}, i64 {pitch}",
    )


def _store_tile(b: Builder, tile: int, address: str, pitch: str) -> None:
    b.call(
        "void",
        "llvm.x86.tilestored64",
        ("i8 immarg", "ptr", "i64"),
        f"i8 {tile}, ptr {address}, i64 {pitch}",
    )


def _multiply(
    b: Builder, spec: Matmul, lefts: list[Operand], packed: str, sums: str, c: Operand
) -> None:
    high = 2 if spec.m % 32 == 0 else 1
    wide = 2 if spec.n % 32 == 0 else 1
    tiles = [(i, j) for i in range(high) for j in range(wide)]
    order = [(i, j) for i in range(len(lefts)) for j in range(len(lefts))]
    order.sort(key=lambda pair: -sum(pair))

    def block(m: str, n: str) -> None:
        places = [c.at(b, b.add(m, str(16 * i)), b.add(n, str(16 * j))) for i, j in tiles]
        for (i, j), place in zip(tiles, places, strict=True):
            if spec.fresh or spec.scaled:
                b.call("void", "llvm.x86.tilezero", ("i8 immarg",), f"i8 {_SUM + 2 * i + j}")
            else:
                _load_tile(b, _SUM + 2 * i + j, place, c.pitch)
        for left, right in order:

            def step(k: str, _: list[str], left: int = left, right: int = right) -> list[str]:
                operand = lefts[left]
                for i in range(high):
                    address = operand.at(b, b.add(m, str(16 * i)), k)
                    _load_tile(b, _LEFT + i, address, operand.pitch)
                half = b.value(f"lshr i64 {k}, 1") if k != "0" else "0"
                for j in range(wide):
                    column = b.add(n, str(16 * j))
                    _load_tile(
                        b, _RIGHT + j, _packed_at(b, spec, packed, right, column, half), "64"
                    )
                for i, j in tiles:
                    numbers = (_SUM + 2 * i + j, _LEFT + i, _RIGHT + j)
                    b.call(
                        "void",
                        "llvm.x86.tdpbf16ps",
                        ("i8 immarg",) * 3,
                        ", ".join(f"i8 {number}" for number in numbers),
                    )
                return []

            b.loop(spec.k, _DEPTH, step)
        for number, ((i, j), place) in enumerate(zip(tiles, places, strict=True)):
            if not spec.scaled:
                _store_tile(b, _SUM + 2 * i + j, place, c.pitch)
                continue
            kept = b.at(sums, str(1024 * number))
            _store_tile(b, _SUM + 2 * i + j, kept, "64")
            for row in range(16):
                here = b.at(place, b.times(c.pitch, row))
                total, before = b.load(F32, b.at(kept, str(64 * row))), b.load(F32, here)
                factor = row_scale(b, b.add(m, str(16 * i + row)))
                b.store(F32, b.fma(factor, before, total), here)

    def rows(m: str, _: list[str]) -> list[str]:
        def columns(n: str, _: list[str]) -> list[str]:
            block(m, n)
            return []

        b.loop(spec.n, 16 * wide, columns)
        return []

    b.loop(spec.m, 16 * high, rows)


def _plain_unless_finite(
    b: Builder, spec: Matmul, spread: str, operands: tuple[Operand, Operand, Operand]
) -> None:
    """Return early with plain sums if an operand holds an infinity or NaN."""
    largest = b.call("i32", "llvm.vector.reduce.umax.v16i32", (I32,), f"{I32} {spread}")
    finite = b.value(f"icmp ult i32 {largest}, {0x7F800000}")
    plain, unit = b.name(), b.name()
    b.line(f"br i1 {finite}, label %{unit}, label %{plain}")
    b.label(plain)
    a, right, c = operands

    def number(place: Operand, row: str, column: str) -> str:
        return b.value(f"fpext half {b.load('half', place.at(b, row, column), 2)} to float")

    def row(m: str, _: list[str]) -> list[str]:
        def column(n: str, _: list[str]) -> list[str]:
            def step(k: str, total: list[str]) -> list[str]:
                x = number(a, m, k)
                y = number(right, n, k) if spec.transposed else number(right, k, n)
                return [b.value(f"fadd float {total[0]}, {b.value(f'fmul float {x}, {y}')}")]

            place = c.at(b, m, n)
            start = "0.0" if spec.fresh else b.load("float", place)
            if spec.scaled:
                factor = b.value(f"extractelement {F32} {row_scale(b, m)}, i64 0")
                start = b.value(f"fmul float {factor}, {start}")
            total = b.loop(spec.k, 1, step, [("float", start)])[0]
            b.store("float", total, place)
            return []

        b.loop(spec.n, 1, column)
        return []

    b.loop(spec.m, 1, row)
    b.line("ret void")
    b.label(unit)
