"""Few rows times ``B[k, n]``: multiples of B's rows are added to sums on the stack.

The sums of some rows of A in some columns of B, a panel, stay in registers over a block of B's
rows, which stays in the first-level cache until all sums have been visited. With 256-bit vectors
bf16 is widened in pairs of them, one operation each: elements in even places and in odd ones. The
sums then lie in that order until they go to C.
"""

from __future__ import annotations

from dataclasses import dataclass

from fa_triton.native.micro_builder import BYTES, LINE, Builder
from fa_triton.native.micro_operands import Operand, row_scale
from fa_triton.native.micro_row_work import RowWork, row_groups, shared_rows
from fa_triton.native.micro_transposes import alternate, even_and_odd

# Sums in registers, by lanes: of 32 registers, and of 16.
_SUMS = {16: 16, 8: 8}
# Rows of B between two visits of the sums.
_BLOCK = 16
# Rows of B without a branch, by lanes. 512-bit vectors wait for memory: a load instruction then
# goes from row to row, a stride that the processor's prefetcher recognises.
_STEP = {16: 1, 8: 4}


@dataclass(frozen=True)
class _Panel:
    """What a visit goes through.

    Attributes:
        groups: Rows of A that are in registers at the same time.
        vectors: Columns, in vectors.
        is_split: Even and odd places of two vectors apart.
        sums: The sums of all rows and columns.
    """

    groups: list[range]
    vectors: int
    is_split: bool
    sums: Operand


def _panel(b: Builder, work: RowWork) -> _Panel:
    spec = work.spec
    groups = row_groups(spec.m, shared_rows(spec, b.lanes))
    count = _SUMS[b.lanes] // len(groups[0])
    vectors = next(x for x in (16, 8, 4, 2, 1) if x <= count and spec.n % (x * b.lanes) == 0)
    sums = Operand(b.scratch(spec.m * spec.n * 4), str(4 * spec.n), "f32")
    is_split = b.lanes == 8 and vectors > 1 and spec.right == "bf16"
    return _Panel(groups, vectors, is_split, sums)


def emit(b: Builder, work: RowWork) -> None:
    """Emit the products."""
    panel = _panel(b, work)
    _start(b, work, panel)

    def block(k: str, _: list[str]) -> list[str]:
        def columns(n: str, _: list[str]) -> list[str]:
            before = b.value(f"udiv i64 {n}, {panel.vectors * b.lanes}")
            for number, rows in enumerate(panel.groups):
                visit = b.add(b.times(before, len(panel.groups)), str(number))
                _visit(b, work, panel, rows, (k, n, visit))
            return []

        return b.loop(work.spec.n, panel.vectors * b.lanes, columns)

    b.loop(work.spec.k, _BLOCK, block)
    _finish(b, work, panel)


def _start(b: Builder, work: RowWork, panel: _Panel) -> None:
    """Copy C to the sums, scaled, or clear them."""
    spec = work.spec
    count = 2 if panel.is_split else 1
    for row in map(str, range(spec.m)):
        factor = row_scale(b, row) if spec.scaled else ""

        def columns(n: str, _: list[str], row: str = row, factor: str = factor) -> list[str]:
            values = ["zeroinitializer"] * count
            if not spec.fresh:
                values = _load(b, work.c.at(b, row, n), count)
            if factor:
                values = [b.value(f"fmul {b.f32} {factor}, {value}") for value in values]
            if panel.is_split and not spec.fresh:
                values = even_and_odd(b, *values)
            _store(b, values, panel.sums.at(b, row, n))
            return []

        b.loop(spec.n, count * b.lanes, columns)


def _finish(b: Builder, work: RowWork, panel: _Panel) -> None:
    """Copy the sums to C."""
    count = 2 if panel.is_split else 1
    for row in map(str, range(work.spec.m)):

        def columns(n: str, _: list[str], row: str = row) -> list[str]:
            values = _load(b, panel.sums.at(b, row, n), count)
            _store(b, alternate(b, *values) if panel.is_split else values, work.c.at(b, row, n))
            return []

        b.loop(work.spec.n, count * b.lanes, columns)


def _load(b: Builder, address: str, count: int) -> list[str]:
    return [b.load(b.f32, b.at(address, str(b.size * i))) for i in range(count)]


def _store(b: Builder, values: list[str], address: str) -> None:
    for i, value in enumerate(values):
        b.store(b.f32, value, b.at(address, str(b.size * i)))


def _visit(
    b: Builder, work: RowWork, panel: _Panel, rows: range, place: tuple[str, str, str]
) -> None:
    """Add multiples of a block of B's rows to the sums of some rows in a panel.

    ``place`` is the block's first row, the panel's first column and the number of visits before.
    """
    first, n, visit = place
    addresses = [panel.sums.at(b, str(row), n) for row in rows]
    starts = [value for address in addresses for value in _load(b, address, panel.vectors)]

    def some_rows(i: str, sums: list[str]) -> list[str]:
        _prefetch_share(b, work, panel, first, b.add(b.times(visit, _BLOCK), i))
        for depth in range(_STEP[b.lanes]):
            k = b.add(first, b.add(i, str(depth)))
            values = _widen(b, panel, work.spec.right, work.right.at(b, k, n))
            factors = [b.broadcast(b.load("float", work.a.at(b, str(row), k))) for row in rows]
            pairs = [(factor, value) for factor in factors for value in values]
            sums = [b.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]
        return sums

    sums = b.loop(_BLOCK, _STEP[b.lanes], some_rows, [(b.f32, start) for start in starts])
    for number, address in enumerate(addresses):
        _store(b, sums[number * panel.vectors :][: panel.vectors], address)


def _widen(b: Builder, panel: _Panel, element: str, address: str) -> list[str]:
    """A row of B in a panel, as floats."""
    if panel.vectors == 1:
        return [b.widen(element, address)]
    values: list[str] = []
    for i in range(0, panel.vectors, 2):
        pair = b.at(address, str(i * b.lanes * BYTES[element]))
        values += b.widen_two(element, pair, panel.is_split)
    return values


def _prefetch_share(b: Builder, work: RowWork, panel: _Panel, first: str, before: str) -> None:
    """Share of a step in the prefetch of the block of rows after the one at ``first``.

    Steps go through it in the order of the addresses; ``before`` are the rows of B that this block
    has had visited.
    """
    row_lines = -(-work.spec.n * work.right.size // LINE)
    visits = work.spec.n // (panel.vectors * b.lanes) * len(panel.groups)
    share = -(-row_lines * _STEP[b.lanes] // visits)
    line = b.times(b.value(f"udiv i64 {before}, {_STEP[b.lanes]}"), share)
    next_block = b.add(first, str(_BLOCK))
    for i in range(share):
        now = b.add(line, str(i))
        row = b.add(next_block, b.value(f"udiv i64 {now}, {row_lines}"))
        column = b.times(b.value(f"urem i64 {now}, {row_lines}"), LINE)
        b.prefetch(b.at(work.right.address, b.add(b.times(row, work.right.pitch), column)))
