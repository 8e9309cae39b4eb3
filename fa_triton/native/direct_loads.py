"""Tiles that a matmul reads once are read from where they lie.

The Linalg IR copies every loaded tile into a buffer of its own: a scratchpad on the NPU, one more
pass over the data on a CPU. Where the only uses of the tile read it once and row by row (widening,
a 32-bit transpose, the right side of a matmul with few rows or of a micro-kernel) and nothing in
the same region writes memory, the copy is dropped; a tile cut by a mask is still copied when it is
cut.
"""

from __future__ import annotations

import itertools
import re

_TILE = re.compile(
    r"^(?P<indent> *)(?P<tensor>%\w+) = bufferization\.to_tensor (?P<buffer>%\w+) restrict"
    r" writable : memref<(?P<shape>(?:\d+x)+)(?P<element>\w+)>\n",
    re.M,
)
_WRITES = re.compile(r"materialize_in_destination|memref\.store|Atomic|func\.call|call @")
_SOURCE_TYPE = r"memref<{shape}{element}, strided<\[[\d?, ]*\b1\](?:, offset: [\d?]+)?>>"
# A larger matmul passes over its right side several times: rows far apart would then evict each
# other from the first-level cache.
_ROWS_READ_ONCE = 8


def _region_end(text: str, position: int, indent: str) -> int:
    """Where the innermost region around a line ends."""
    closing = re.compile(rf"^ {{0,{len(indent) - 1}}}\S", re.M).search(text, position)
    return closing.start() if closing else len(text)


def _reads_once(line: str, name: str) -> bool:
    if re.search(rf"= arith\.(extf|sitofp) {name} :", line):
        return True
    if re.search(rf"= linalg\.transpose ins\({name} :", line):
        return True
    if re.search(rf"= linalg\.matmul\w* \{{fa_kernel .*ins\(%[\w#]+, {name} :", line):
        return True
    matmul = re.search(rf"= linalg\.matmul .*ins\(%[\w#]+, {name} : tensor<(\d+)x", line)
    return matmul is not None and int(matmul[1]) <= _ROWS_READ_ONCE


def _may_alias(text: str, tile: re.Match[str]) -> bool:
    """Whether the tensor can stand for the memory it was loaded from."""
    region = text[tile.end() : _region_end(text, tile.end(), tile["indent"])]
    uses = [line for line in region.split("\n") if re.search(rf"{tile['tensor']}\b", line)]
    return not _WRITES.search(region) and all(_reads_once(line, tile["tensor"]) for line in uses)


def read_tiles_in_place(text: str) -> str:
    """Drop the copies of tiles that are read once.

    Args:
        text: Linalg module, matmul operands widened.
    """
    numbers = itertools.count()
    for number in reversed(range(len(_TILE.findall(text)))):
        tile = next(itertools.islice(_TILE.finditer(text), number, None))
        start = text.rfind(f" {tile['buffer']} = memref.alloc()", 0, tile.start())
        if start < 0 or not _may_alias(text, tile):
            continue
        filling = text[start : tile.start()]
        source_type = _SOURCE_TYPE.format(shape=tile["shape"], element=tile["element"])
        whole = re.search(
            rf"^ *memref\.copy (%\w+), {tile['buffer']} : ({source_type}) to .*\n", filling, re.M
        )
        indent, name = tile["indent"], f"%place{next(numbers)}"
        if whole:
            filling = filling.replace(whole[0], "", 1)
            lines = f"{indent}{tile['tensor']} = bufferization.to_tensor {whole[1]} restrict"
            text = f"{text[:start]}{filling}{lines} : {whole[2]}\n{text[tile.end() :]}"
            continue
        cut = re.search(
            rf"^ *scf\.if (?P<cut>%\w+) \{{\n *linalg\.fill [^\n]* outs\({tile['buffer']} :"
            rf"[^\n]*\n *\}} \{{hivm\.unlikely_condition\}}\n"
            rf" *(?P<from>%\w+) = memref\.subview (?P<source>%\w+)\[[0, ]*\] (?P<sizes>\[[^\]]*\])"
            rf" \[[1, ]*\] : (?P<type>{source_type}) to [^\n]*\n"
            rf" *(?P<to>%\w+) = memref\.subview {tile['buffer']}\[[0, ]*\] (?P=sizes)[^\n]*\n"
            rf"(?P<copy> *memref\.copy (?P=from), (?P=to) [^\n]*\n)",
            filling,
            re.M,
        )
        if not cut:
            continue
        rank = tile["shape"].count("x")
        strides = ", ".join(["?"] * (rank - 1) + ["1"])
        common = f"memref<{tile['shape']}{tile['element']}, strided<[{strides}], offset: ?>>"
        plain = f"memref<{tile['shape']}{tile['element']}>"
        guarded = f"{indent}scf.if {cut['cut']} {{\n{cut['copy']}{indent}}}\n"
        filling = filling.replace(cut["copy"], guarded, 1)
        lines = [f"{name}_b = memref.cast {tile['buffer']} : {plain} to {common}"]
        source = cut["source"]
        if cut["type"] != common:
            lines.append(f"{name}_s = memref.cast {source} : {cut['type']} to {common}")
            source = f"{name}_s"
        lines += [
            f"{name} = arith.select {cut['cut']}, {name}_b, {source} : {common}",
            f"{tile['tensor']} = bufferization.to_tensor {name} restrict : {common}",
        ]
        added = "".join(f"{indent}{line}\n" for line in lines)
        text = f"{text[:start]}{filling}{added}{text[tile.end() :]}"
    return text
