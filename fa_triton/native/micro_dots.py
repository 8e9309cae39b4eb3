"""Few rows times ``B[n, k]``: dot products along k.

A key is a row of B. Its vectors serve all rows of A in a block, and vectors of A all its keys. The
lanes of as many keys' sums as a vector has lanes are added up in one tree.
"""

from __future__ import annotations

from dataclasses import dataclass

from fa_triton.native.micro_builder import LINE, Builder
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.micro_operands import Operand, row_scale
from fa_triton.native.micro_row_work import RowWork, row_groups, shared_rows
from fa_triton.native.micro_transposes import add_lanes

# Sums at a time, by lanes: enough to hide the latency of a multiply-add. 512-bit vectors wait for
# memory, not for it: one key after the other.
_SUMS = {16: 1, 8: 8}
# Bytes between a load and the prefetch next to it, by lanes. What is behind the end of a page was
# fetched for nothing.
_AHEAD = {16: 2048, 8: 4096}


@dataclass(frozen=True)
class _Block:
    """Dot products made at the same time.

    Attributes:
        keys: Rows of B.
        length: Elements of k without a branch.
    """

    keys: int
    length: int


def is_split(spec: Matmul) -> bool:
    """Whether k is taken as the elements in even places and those in odd ones, cheap for bf16."""
    return spec.element == spec.right == "bf16"


def _block(b: Builder, work: RowWork, rows: int) -> _Block:
    lengths = [size for size in (128, 64, 32, 16) if work.spec.k % size == 0]
    keys = max(x for x in (1, 2, 4, 8) if x == 1 or x * rows <= _SUMS[b.lanes])
    if keys == 1:
        return _Block(1, lengths[0])
    # Without a loop over k LLVM takes A's vectors for invariants of the loop over keys and copies
    # them to the stack: no more than a cache line at a time.
    return _Block(keys, next(x for x in lengths if x * work.right.size <= LINE or x == lengths[-1]))


def emit(b: Builder, work: RowWork) -> None:
    """Emit the products; A's vectors lie as :func:`is_split` says."""
    spec = work.spec
    groups = row_groups(spec.m, shared_rows(spec, b.lanes))
    shape = _block(b, work, len(groups[0]))
    kept = Operand(b.scratch(spec.m * b.lanes * b.size), str(b.lanes * b.size), "f32")

    def block(n: str, _: list[str]) -> list[str]:
        # A loop, not as many copies: each load instruction then walks through memory in one small
        # stride, which the processor's prefetcher recognises.
        def some_keys(key: str, _: list[str]) -> list[str]:
            numbers = map(str, range(shape.keys))
            places = [work.right.at(b, b.add(b.add(n, key), number), "0") for number in numbers]
            for rows in groups:
                sums = iter(_dots(b, work, shape, rows, places))
                for i in range(shape.keys):
                    for row in rows:
                        place = b.at(kept.at(b, str(row), "0"), b.times(key, b.size))
                        b.store(b.f32, next(sums), b.at(place, str(i * b.size)), b.size)
            return []

        b.loop(b.lanes, shape.keys, some_keys)
        for row in map(str, range(spec.m)):
            _finish(b, spec, kept.at(b, row, "0"), work.c.at(b, row, n), row)
        return []

    b.loop(spec.n, b.lanes, block)


def _dots(b: Builder, work: RowWork, shape: _Block, rows: range, places: list[str]) -> list[str]:
    """Products of rows with the keys at ``places``, key by key, lanes not yet added up."""
    spec, size = work.spec, work.right.size

    def chunk(k: str, sums: list[str]) -> list[str]:
        addresses = [b.at(place, b.times(k, size)) for place in places]
        for part in range(0, shape.length, 2 * b.lanes):
            start, end = part * size, (part + 2 * b.lanes) * size
            keys = []
            for address in addresses:
                # The first rows fetch for all.
                if rows.start == 0:
                    for line in range(-(-start // LINE) * LINE, end, LINE):
                        b.prefetch(b.at(address, str(_AHEAD[b.lanes] + line)))
                keys.append(b.widen_two(spec.right, b.at(address, str(start)), is_split(spec)))
            for half in range(2):
                at = str(4 * part + b.size * half)
                queries = [b.load(b.f32, b.at(work.a.at(b, str(row), k), at)) for row in rows]
                pairs = [(query, key[half]) for key in keys for query in queries]
                sums = [b.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]
        return sums

    zeros = [(b.f32, "zeroinitializer")] * (len(places) * len(rows))
    return b.loop(spec.k, shape.length, chunk, zeros)


def _finish(b: Builder, spec: Matmul, kept: str, place: str, row: str) -> None:
    """Add up the lanes of one row's sums, and add that to C."""
    vectors = [b.load(b.f32, b.at(kept, str(b.size * i)), b.size) for i in range(b.lanes)]
    total = add_lanes(b, vectors)
    if spec.scaled:
        total = b.fma(row_scale(b, row), b.load(b.f32, place), total)
    elif not spec.fresh:
        total = b.value(f"fadd {b.f32} {b.load(b.f32, place)}, {total}")
    b.store(b.f32, total, place)
