"""Recognise the mask functions that transformers hands to a mask interface.

A mask function is a closure built from known parts (causal, window, padding, packing, ...). The
kernels take a causal mask or a causal window as numbers, so the closure must be recognised; any
other one has to be refused, because a mask that is ignored gives wrong text without a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sliding_window_causal_mask_function,
)


def is_causal(mask_function: Callable[..., Any], window: int | None) -> bool:
    """Tell whether a mask function is causal, or causal within a sliding window.

    Args:
        mask_function: The function that transformers passed.
        window: The window that came with it, None without one.
    """
    if window is not None:
        return _same(mask_function, sliding_window_causal_mask_function(window))
    return _same(mask_function, causal_mask_function)


def is_bidirectional(mask_function: Callable[..., Any]) -> bool:
    """Tell whether a mask function hides nothing."""
    return _same(mask_function, bidirectional_mask_function)


def _same(a: object, b: object) -> bool:
    """Compare two closures by their code and, recursively, by what they captured."""
    if a is b:
        return True
    if isinstance(a, FunctionType) and isinstance(b, FunctionType):
        return a.__code__ is b.__code__ and _same(a.__closure__, b.__closure__)
    if isinstance(a, CellType) and isinstance(b, CellType):
        return _same(a.cell_contents, b.cell_contents)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, int) and isinstance(b, int) and a == b
