"""A kernel's identity on disk: its source, that of all it calls, and the constants it reads.

Triton's own key leaves out the values of global constants (it compares them at every launch
instead) and holds line numbers; a disk cache needs the first and not the second.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import types
from typing import Any

from triton.language import constexpr
from triton.runtime.jit import JITFunction

_UNRESOLVED = object()


def _resolve(node: ast.expr, scope: dict[str, Any]) -> Any:
    """Value of a global name or of an attribute chain that starts at one."""
    if isinstance(node, ast.Name):
        return scope.get(node.id, _UNRESOLVED)
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, scope)
        return _UNRESOLVED if owner is _UNRESOLVED else getattr(owner, node.attr, _UNRESOLVED)
    return _UNRESOLVED


def _stable_text(value: Any) -> str:
    """Text of a constant that is the same in every process."""
    text = repr(value)
    if " at 0x" in text:
        return f"{type(value).__qualname__}:{getattr(value, '__qualname__', '')}"
    return text


def _collect(kernel: JITFunction, seen: dict[int, str]) -> None:
    if id(kernel) in seen:
        return
    seen[id(kernel)] = ""
    constants = {}
    for node in ast.walk(ast.parse(kernel.src)):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        value = _resolve(node, kernel.__globals__)
        if value is _UNRESOLVED or isinstance(value, types.ModuleType):
            continue
        if isinstance(value, JITFunction):
            _collect(value, seen)
        elif isinstance(value, constexpr) or not callable(value):
            constants[ast.unparse(node)] = _stable_text(value)
    seen[id(kernel)] = f"{kernel.src}\n{sorted(constants.items())}\n"


@functools.cache
def fingerprint(kernel: JITFunction) -> str:
    """Hash a kernel, the jit functions it reaches, and the global constants they read.

    Args:
        kernel: A ``@triton.jit`` function.
    """
    seen: dict[int, str] = {}
    _collect(kernel, seen)
    return hashlib.sha256("\0".join(sorted(seen.values())).encode()).hexdigest()
