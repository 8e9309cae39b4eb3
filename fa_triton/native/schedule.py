"""Transform script that register-tiles the matmuls and transposes of a bufferized module."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANY = "!transform.any_op"
_MATMUL = re.compile(
    r"linalg\.matmul \{([^}]*)\} ins\((.*?) : memref<(\d+)x(\d+)x\w+.*?>, memref<(\d+)x(\d+)x"
)
_TRANSPOSE = re.compile(
    r"^ *linalg\.transpose ins\((.*?) : memref<(\d+)x(\d+)xf32.*permutation = \[1, 0\] *$", re.M
)


@dataclass(frozen=True)
class RegisterTile:
    """Largest matmul tile whose accumulators stay in registers.

    Attributes:
        rows: Rows of the tile at most.
        area: Rows times columns; a matmul with few rows gets a wider tile.
        depth: Steps of the inner dimension that are unrolled.
    """

    rows: int
    area: int
    depth: int

    def of(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """The tile of a matmul ``[m, k] x [k, n]``: powers of two that divide it."""
        rows = _divisor(m, self.rows)
        return rows, _divisor(n, self.area // rows), _divisor(k, self.depth)


# 16 accumulators of 16 floats out of 32 registers.
AVX512_TILE = RegisterTile(rows=8, area=256, depth=8)
# 8 accumulators of 8 floats out of 16 registers, or 16 of 4 floats out of 32 (NEON).
NARROW_TILE = RegisterTile(rows=4, area=64, depth=4)


def _divisor(extent: int, limit: int) -> int:
    """Largest power of two that divides ``extent``, at most ``limit``."""
    divisor = 1
    while divisor < limit and extent % (2 * divisor) == 0:
        divisor *= 2
    return divisor


_TRANSPOSE_STEP = f"""
  %transposes = transform.structured.match attributes{{fa_transpose}} in %root : ({_ANY}) -> {_ANY}
  %tiled_transposes, %transpose_loops:2 = transform.structured.tile_using_for %transposes
    tile_sizes [16, 16] : ({_ANY}) -> ({_ANY}, {_ANY}, {_ANY})
  transform.structured.vectorize %tiled_transposes : {_ANY}
  %transpose_functions = transform.structured.match ops{{["func.func"]}} in %root
    : ({_ANY}) -> {_ANY}
  transform.apply_patterns to %transpose_functions {{
    transform.apply_patterns.canonicalization
    transform.apply_patterns.vector.transfer_permutation_patterns
  }} : {_ANY}
  transform.apply_patterns to %transpose_functions {{
    transform.apply_patterns.vector.lower_transpose lowering_strategy = "shuffle_16x16"
    transform.apply_patterns.vector.lower_shape_cast
    transform.apply_patterns.canonicalization
  }} : {_ANY}
"""

_LOWER_STEP = f"""
  %functions = transform.structured.match ops{{["func.func"]}} in %root : ({_ANY}) -> {_ANY}
  transform.apply_patterns to %functions {{
    transform.apply_patterns.canonicalization
    transform.apply_patterns.vector.reduction_to_contract
    transform.apply_patterns.vector.transfer_permutation_patterns
  }} : {_ANY}
  transform.apply_patterns to %functions {{
    transform.apply_patterns.vector.lower_contraction lowering_strategy = "outerproduct"
    transform.apply_patterns.canonicalization
  }} : {_ANY}
  %hoisted = transform.structured.hoist_redundant_vector_transfers %functions
    : ({_ANY}) -> {_ANY}
  transform.apply_patterns to %hoisted {{
    transform.apply_patterns.vector.lower_outerproduct
    transform.apply_patterns.vector.lower_transfer max_transfer_rank = 1
    transform.apply_patterns.vector.lower_transpose
    transform.apply_patterns.vector.lower_shape_cast
    transform.apply_patterns.canonicalization
  }} : {_ANY}
"""


def _matmul_step(number: int, tile: tuple[int, int, int]) -> str:
    label = "_".join(map(str, tile))
    return f"""
  %matmul{number} = transform.structured.match ops{{["linalg.matmul"]}}
    attributes{{fa_tile = "{label}"}} in %root : ({_ANY}) -> {_ANY}
  %tiled{number}, %loops{number}:3 = transform.structured.tile_using_for %matmul{number}
    tile_sizes {list(tile)} : ({_ANY}) -> ({_ANY}, {_ANY}, {_ANY}, {_ANY})
  transform.structured.vectorize %tiled{number} : {_ANY}
"""


def add_schedule(text: str, tile: RegisterTile) -> tuple[str, bool]:
    """Mark matmuls and 16x16-divisible f32 transposes and prepend the script that tiles them.

    Args:
        text: Bufferized module.
        tile: Register tile of this CPU.

    Returns:
        The module, and whether it holds a schedule to run.
    """
    tiles: set[tuple[int, int, int]] = set()
    transposes = 0

    def mark_matmul(match: re.Match[str]) -> str:
        m, k, n = int(match[3]), int(match[4]), int(match[6])
        chosen = tile.of(m, n, k)
        tiles.add(chosen)
        label = "_".join(map(str, chosen))
        return match[0].replace("{" + match[1] + "}", f'{{fa_tile = "{label}", {match[1]}}}', 1)

    def mark_transpose(match: re.Match[str]) -> str:
        nonlocal transposes
        if int(match[2]) % 16 or int(match[3]) % 16:
            return match[0]
        transposes += 1
        return match[0].rstrip() + " {fa_transpose}"

    text = _MATMUL.sub(mark_matmul, text)
    text = _TRANSPOSE.sub(mark_transpose, text)
    if not tiles and not transposes:
        return text, False
    script = [
        "module attributes {transform.with_named_sequence} {",
        f"transform.named_sequence @__transform_main(%root: {_ANY} {{transform.consumed}}) {{",
        _TRANSPOSE_STEP if transposes else "",
        *(_matmul_step(number, chosen) for number, chosen in enumerate(sorted(tiles))),
        _LOWER_STEP,
        "  transform.yield\n}\n",
    ]
    start = text.index("module")
    body = text.index("{", start)
    return text[:start] + "\n".join(script) + text[body + 1 :], True
