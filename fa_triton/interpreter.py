"""Runs kernels in Triton's interpreter: slow, and for looking at kernels step by step.

The interpreter of triton-ascend 3.2.0 has faults that ``prepare`` repairs:

* scalars are one-element arrays, which numpy >= 2.4 no longer converts to ``int``;
* bfloat16 is stored as uint16, and dots, arithmetic and most casts compute with those integers;
* ``tl.maximum`` and ``tl.minimum`` propagate NaN where Triton's default is to drop it;
* matrix products of fewer than 16 rows are refused, which the compiler takes;
* the variable of a loop is a Python integer, which lacks what a scalar has (``.to``).
"""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from triton import language as tl
from triton.runtime import interpreter

_FLOATS = (tl.float16, tl.bfloat16, tl.float32, tl.float64)


def _is_bfloat16(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def _widened(handle: Any) -> Any:
    """The handle, as float32 if it is bfloat16."""
    if not _is_bfloat16(handle):
        return handle
    data = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(data, tl.float32)


def _narrowed(data: np.ndarray) -> Any:
    """A bfloat16 handle for float32 data, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    words = np.where(np.isnan(data), 0x7FC0, rounded).astype(np.uint16)
    return interpreter.TensorHandle(words, tl.bfloat16)


_launches = 0


def _loop(*bounds: Any) -> Iterable[Any]:
    """``range`` for modules of kernels: while one runs, it counts in scalars like the bounds."""
    values = builtins.range(*bounds)
    if not _launches:
        return values
    is_long = any(isinstance(bound, tl.tensor) and bound.dtype == tl.int64 for bound in bounds)
    kind, dtype = (tl.int64, np.int64) if is_long else (tl.int32, np.int32)
    return (tl.tensor(interpreter.TensorHandle(np.array([i], dtype), kind), kind) for i in values)


@functools.lru_cache(maxsize=1)
def prepare() -> None:
    """Repair the interpreter, once per process."""
    builder: Any = interpreter.InterpreterBuilder
    cast, convert, dot = builder.cast_impl, builder.create_fp_to_fp, builder.create_dot
    binary, unary = builder.binary_op, builder.unary_op
    patch_tensor, patch_module = interpreter._patch_lang_tensor, interpreter._patch_lang

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if target.scalar == tl.bfloat16:
            return _narrowed(_widened(source).data.astype(np.float32))
        return cast(self, _widened(source), target)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.dtype.scalar in _FLOATS and target.scalar in _FLOATS:
            return self.cast_impl(source, target)
        return convert(self, source, target, rounding)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), *rest)

    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        if not _is_bfloat16(left):
            return binary(self, left, right, operation)
        result = binary(self, _widened(left), _widened(right), operation)
        return _narrowed(result.data) if result.data.dtype == np.float32 else result

    def unary_op(self: Any, argument: Any, operation: Any) -> Any:
        if not _is_bfloat16(argument):
            return unary(self, argument, operation)
        return _narrowed(operation(_widened(argument).data))

    def patch_lang_tensor(tensor: Any) -> None:
        patch_tensor(tensor)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    def patch_lang(function: Any) -> None:
        patch_module(function)
        function.__globals__["range"] = _loop

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
    builder.create_dot = create_dot
    builder.binary_op = binary_op
    builder.unary_op = unary_op
    builder.create_maxnumf = lambda self, left, right: self.binary_op(left, right, np.fmax)
    builder.create_minnumf = lambda self, left, right: self.binary_op(left, right, np.fmin)
    interpreter._patch_lang_tensor = patch_lang_tensor
    interpreter._patch_lang = patch_lang
    interpreter.interpreter_builder.codegen_fns["min_dot_size"] = lambda left, right: (1, 1, 1)


def launch(kernel: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Run a kernel that Triton defined for its interpreter.

    Args:
        kernel: The kernel.
        grid: Programs per axis, or a function of the arguments by name.
        args: Positional arguments.
        kwargs: Arguments by name.
    """
    prepare()
    if callable(grid):
        grid = grid(inspect.getcallargs(kernel.fn, *args, **kwargs))
    sizes = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    global _launches
    _launches += 1
    try:
        with np.errstate(all="ignore"):
            kernel[tuple(int(size) for size in sizes)](*args, **kwargs)
    finally:
        _launches -= 1
