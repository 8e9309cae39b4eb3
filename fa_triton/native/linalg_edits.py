"""Rewrites of the Linalg text before bufferization.

SSA names are reused by sibling regions, so a definition is always looked up as the nearest one
above its use.
"""

from __future__ import annotations

import itertools
import re

_HINTS = re.compile(r"^ *(annotation\.mark .*|gpu\.barrier)$\n?", re.M)

_MATMUL = re.compile(
    r"^( *)(%\w+ = linalg\.matmul \{(?!fa_kernel)[^}]*\}) ins\((%[\w#]+), (%[\w#]+) : "
    r"tensor<([\dx]*x)(\w+)>, tensor<([\dx]*x)(\w+)>\) outs\(",
    re.M,
)
_TRANSPOSE_16_BIT = re.compile(
    r" (%\w+) = linalg\.transpose ins\((%[\w#]+) : tensor<(\d+)x(\d+)x(?:bf16|f16)>\)"
    r" .*permutation = \[1, 0\]"
)
_ROW_EXTREMUM = re.compile(
    r"^( *)(%\w+) = linalg\.reduce ins\((%[\w#]+) : tensor<(\d+)x(\d+)xf32>\)"
    r" outs\((%[\w#]+) : tensor<\d+xf32>\) dimensions = \[1\] *"
    r"(\n *\(%\w+: f32, %\w+: f32\) \{"
    r"\n *%\w+ = arith\.(?:maxnumf|minnumf|maximumf|minimumf) [^\n]*"
    r"\n *linalg\.yield [^\n]*\n *\})",
    re.M,
)
_BROADCAST = re.compile(
    r"= linalg\.broadcast ins\((%[\w#]+) : (tensor<[^>]*>)\) outs\((%[\w#]+) : (tensor<[^>]*>)\)"
    r" dimensions = \[([\d, ]*)\] *$",
    re.M,
)
_FILL = re.compile(r" \S+ = linalg\.fill ins\((%[\w#]+) : f32\)")

_LANES = 16


def definition(text: str, name: str, use: int) -> str | None:
    """Text from the nearest definition of ``name`` above ``use`` to the end of that line."""
    start = text.rfind(f" {name} = ", 0, use)
    return None if start < 0 else text[start : text.index("\n", start)]


def drop_hints(text: str) -> str:
    """Remove compiler hints and barriers: a program runs alone, bufferization rejects both."""
    return _HINTS.sub("", text)


def widen_matmul_operands(text: str) -> str:
    """Extend 16-bit matmul operands to f32 once per element instead of once per product.

    Exact, since the products are f32 anyway. A transposed operand is extended before its
    transpose, because the 32-bit transpose has a register-tiled schedule.
    """
    count = itertools.count()

    def widen(match: re.Match[str]) -> str:
        indent, number = match[1], next(count)
        lines, operands = [], []
        for side, (value, shape, element) in enumerate(
            ((match[3], match[5], match[6]), (match[4], match[7], match[8]))
        ):
            if element in ("bf16", "f16"):
                name = f"%wide{number}_{side}"
                line = definition(text, value, match.start())
                transpose = line and _TRANSPOSE_16_BIT.match(line)
                if transpose:
                    source, before = transpose[2], f"{transpose[3]}x{transpose[4]}x"
                    lines += [
                        f"{indent}{name}_s = arith.extf {source} : tensor<{before}{element}>"
                        f" to tensor<{before}f32>",
                        f"{indent}{name}_e = tensor.empty() : tensor<{shape}f32>",
                        f"{indent}{name} = linalg.transpose ins({name}_s : tensor<{before}f32>)"
                        f" outs({name}_e : tensor<{shape}f32>) permutation = [1, 0]",
                    ]
                else:
                    lines.append(
                        f"{indent}{name} = arith.extf {value} : tensor<{shape}{element}>"
                        f" to tensor<{shape}f32>"
                    )
                value, element = name, "f32"
            operands.append((value, f"tensor<{shape}{element}>"))
        (left, left_type), (right, right_type) = operands
        lines.append(f"{indent}{match[2]} ins({left}, {right} : {left_type}, {right_type}) outs(")
        return "\n".join(lines)

    return _MATMUL.sub(widen, text)


def open_broadcasts(text: str) -> str:
    """Write broadcasts as generic operations, which fuse with the arithmetic that uses them."""

    def generic(match: re.Match[str]) -> str:
        source, source_type, target, target_type, added = match.groups()
        element = target_type.removesuffix(">").rsplit("x", 1)[1]
        dims = [f"d{d}" for d in range(target_type.count("x"))]
        left_out = {int(d) for d in added.split(",") if d.strip()}
        kept = ", ".join(dim for d, dim in enumerate(dims) if d not in left_out)
        every = ", ".join(dims)
        iterators = ", ".join(['"parallel"'] * len(dims))
        return (
            f"= linalg.generic {{indexing_maps = [affine_map<({every}) -> ({kept})>,"
            f" affine_map<({every}) -> ({every})>], iterator_types = [{iterators}]}}"
            f" ins({source} : {source_type}) outs({target} : {target_type}) {{\n"
            f"^bb0(%in: {element}, %out: {element}):\n"
            f"linalg.yield %in : {element}\n}} -> {target_type}"
        )

    return _BROADCAST.sub(generic, text)


def split_row_extrema(text: str) -> str:
    """Reduce rows to 16 lanes by maxima of whole slices, then the lanes.

    LLVM does not vectorise one long maxnum recurrence (its NaN rules forbid reordering) and keeps
    16 recurrences in memory; slices of a row make it a chain of vector operations. The lanes are
    reduced the same way after a transpose where the number of rows allows a tiled one.
    """
    count = itertools.count()

    def split(match: re.Match[str]) -> str:
        indent, result, source, outs, body = match[1], match[2], match[3], match[6], match[7]
        rows, columns = int(match[4]), int(match[5])
        line = definition(text, outs, match.start())
        fill = line and _FILL.match(line)
        if columns % _LANES or columns < 2 * _LANES or not fill:
            return match[0]
        operation = re.search(r"arith\.\w+", body)
        name = f"%row{next(count)}"
        lines: list[str] = []

        def fold(tensor: str, shape: str, part: str, sizes: str, offsets: list[str]) -> str:
            slices = []
            for number, offset in enumerate(offsets):
                slices.append(f"{name}_{part}{number}")
                lines.append(
                    f"{slices[-1]} = tensor.extract_slice {tensor}[{offset}] [{sizes}] [1, 1]"
                    f" : tensor<{shape}xf32> to tensor<{part_shape}xf32>"
                )
            while len(slices) > 1:
                left, right = slices[0], slices[1]
                folded = f"{left}_"
                lines.append(
                    f"{folded} = {operation[0] if operation else ''} {left}, {right}"
                    f" : tensor<{part_shape}xf32>"
                )
                slices = [*slices[2:], folded]
            return slices[0]

        part_shape = f"{rows}x{_LANES}"
        lanes = fold(
            source,
            f"{rows}x{columns}",
            "s",
            f"{rows}, {_LANES}",
            [f"0, {column}" for column in range(0, columns, _LANES)],
        )
        axis = 1
        if rows % _LANES == 0:
            lines += [
                f"{name}_te = tensor.empty() : tensor<{_LANES}x{rows}xf32>",
                f"{name}_t = linalg.transpose ins({lanes} : tensor<{rows}x{_LANES}xf32>)"
                f" outs({name}_te : tensor<{_LANES}x{rows}xf32>) permutation = [1, 0]",
            ]
            part_shape = f"1x{rows}"
            lanes = fold(
                f"{name}_t",
                f"{_LANES}x{rows}",
                "l",
                f"1, {rows}",
                [f"{lane}, 0" for lane in range(_LANES)],
            )
            axis = 0
        shape = part_shape if axis == 0 else f"{rows}x{_LANES}"
        lines.append(
            f"{result} = linalg.reduce ins({lanes} : tensor<{shape}xf32>)"
            f" outs({outs} : tensor<{rows}xf32>) dimensions = [{axis}]{body}"
        )
        return "\n".join(indent + line for line in lines)

    return _ROW_EXTREMUM.sub(split, text)
