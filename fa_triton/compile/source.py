"""Hash a kernel's source with everything it refers to.

Triton's ``cache_key`` is not enough: it changes with the line a kernel starts at, and it misses
globals that only a helper reads.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any


@functools.lru_cache(maxsize=64)
def source_hash(kernel: Any) -> str:
    """Hash a jit function, the jit functions it calls, and the global constants all of them read.

    Args:
        kernel: The ``@triton.jit`` function.
    """
    parts: dict[str, str] = {}
    _collect(kernel, parts)
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def _collect(function: Any, parts: dict[str, str]) -> None:
    name = function.__name__
    if name in parts and parts[name] != function.src:
        name = f"{function.__module__}.{name}"
    if name in parts:
        return
    parts[name] = function.src
    for used, value in _globals_of(function):
        if _is_jit_function(value):
            # Triton's own library is covered by its version.
            if not value.__module__.startswith("triton."):
                _collect(value, parts)
        elif not isinstance(value, ModuleType | FunctionType | BuiltinFunctionType | type):
            parts[f"{name}: {used}"] = repr(value)


def _globals_of(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function's names and dotted names stand for outside of it."""
    for node in ast.walk(ast.parse(function.src)):
        if isinstance(node, ast.Name | ast.Attribute):
            dotted = _dotted(node)
            if dotted is not None:
                yield from _resolve(dotted, function.__globals__)


def _dotted(node: ast.AST) -> list[str] | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return [node.id, *reversed(names)]


def _resolve(dotted: list[str], scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if dotted[0] not in scope:
        return
    value = scope[dotted[0]]
    for name in dotted[1:]:
        # Only modules are looked into: attributes of values are not global constants.
        if not isinstance(value, ModuleType) or value.__name__.partition(".")[0] == "triton":
            return
        if not hasattr(value, name):
            return
        value = getattr(value, name)
    yield ".".join(dotted), value


def _is_jit_function(value: Any) -> bool:
    return hasattr(value, "src") and hasattr(value, "arg_names")
