"""Affine maps of MLIR: ``(d0)[s0] -> (d0 * 256 + s0, 4)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MAP = re.compile(r"^\(([^)]*)\)(?:\[([^\]]*)\])? -> \((.*)\)$")
# Python's matrix product has the precedence of a division: it stands for `ceildiv`
_AS_PYTHON = ((" floordiv ", " // "), (" ceildiv ", " @ "), (" mod ", " % "))
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.MatMult: lambda a, b: -(-a // b),
    ast.Mod: lambda a, b: a % b,
}

_Values = dict[str, int]
_Evaluator = Callable[[_Values], int]


@dataclass(frozen=True)
class AffineMap:
    """Names of the operands (dimensions, then symbols) and one evaluator per result."""

    operands: tuple[str, ...]
    results: tuple[_Evaluator, ...]

    def __call__(self, values: Sequence[int]) -> list[int]:
        """Apply the map to the values of its operands."""
        named = dict(zip(self.operands, values, strict=True))
        return [result(named) for result in self.results]


def parse_map(text: str) -> AffineMap:
    """Read what stands between the brackets of ``affine_map<...>``.

    Raises:
        ValueError: The text is no affine map.
    """
    parts = _MAP.match(text)
    if parts is None:
        raise ValueError(f"`text` must be an affine map, got {text!r}")
    names = [name.strip() for group in parts.groups()[:2] for name in (group or "").split(",")]
    body = parts[3]
    for mlir, python in _AS_PYTHON:
        body = body.replace(mlir, python)
    tree = ast.parse(f"({body},)", mode="eval").body
    if not isinstance(tree, ast.Tuple):
        raise ValueError(f"`text` must be an affine map, got {text!r}")
    return AffineMap(
        tuple(name for name in names if name), tuple(_evaluator(node) for node in tree.elts)
    )


def _evaluator(node: ast.expr) -> _Evaluator:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        constant = node.value
        return lambda values: constant
    if isinstance(node, ast.Name):
        name = node.id
        return lambda values: values[name]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _evaluator(node.operand)
        return lambda values: -operand(values)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right, apply = _evaluator(node.left), _evaluator(node.right), _BINARY[type(node.op)]
        return lambda values: apply(left(values), right(values))
    raise ValueError(f"`text` must be an affine expression, got {ast.unparse(node)!r}")
