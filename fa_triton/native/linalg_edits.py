"""Rewrites of the Linalg text before bufferization.

SSA names are reused by sibling regions, so a definition is always looked up as the nearest one
above its use.
"""

from __future__ import annotations

import itertools
import re

_HINTS = re.compile(r"^ *(annotation\.mark .*|gpu\.barrier)$\n?", re.M)

_MATMUL = re.compile(
    r"^( *)(%\w+ = linalg\.matmul \{.*?\}) ins\((%[\w#]+), (%[\w#]+) : "
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


def split_row_extrema(text: str) -> str:
    """Reduce rows in 16 lanes, then the lanes.

    LLVM does not vectorise one long maxnum recurrence (its NaN rules forbid reordering), but it
    does vectorise 16 independent ones.
    """
    count = itertools.count()

    def split(match: re.Match[str]) -> str:
        indent, result, source, outs, body = match[1], match[2], match[3], match[6], match[7]
        rows, columns = int(match[4]), int(match[5])
        line = definition(text, outs, match.start())
        fill = line and _FILL.match(line)
        if columns % _LANES or columns < 2 * _LANES or not fill:
            return match[0]
        number = next(count)
        wide = f"tensor<{rows}x{columns // _LANES}x{_LANES}xf32>"
        lanes = f"tensor<{rows}x{_LANES}xf32>"
        return "\n".join(
            (
                f"{indent}%lanes{number} = tensor.expand_shape {source} [[0], [1, 2]]"
                f" output_shape [{rows}, {columns // _LANES}, {_LANES}]"
                f" : tensor<{rows}x{columns}xf32> into {wide}",
                f"{indent}%lanes{number}_e = tensor.empty() : {lanes}",
                f"{indent}%lanes{number}_f = linalg.fill ins({fill[1]} : f32)"
                f" outs(%lanes{number}_e : {lanes}) -> {lanes}",
                f"{indent}%lanes{number}_r = linalg.reduce ins(%lanes{number} : {wide})"
                f" outs(%lanes{number}_f : {lanes}) dimensions = [1]{body}",
                f"{indent}{result} = linalg.reduce ins(%lanes{number}_r : {lanes})"
                f" outs({outs} : tensor<{rows}xf32>) dimensions = [1]{body}",
            )
        )

    return _ROW_EXTREMUM.sub(split, text)
