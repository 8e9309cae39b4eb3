"""Checks of plain Python arguments."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=str)

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
MAX_INT32 = 2**31 - 1


def as_int(
    name: str,
    value: object,
    *,
    none_is: int | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
) -> int:
    """Return ``value`` as an int from ``minimum`` to ``maximum``; None counts as ``none_is``."""
    if value is None and none_is is not None:
        return none_is
    if isinstance(value, bool):
        raise TypeError(f"`{name}` must be an int, got bool")
    if isinstance(value, torch.Tensor):
        # to read it would wait for a device, and calls that differ in it would look alike
        raise TypeError(f"`{name}` must be an int, got a tensor; use .item() or .tolist()")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"`{name}` must be an int, got {type(value).__name__}") from None
    if minimum is not None and number < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {number}")
    if maximum is not None and number > maximum:
        raise ValueError(f"`{name}` must be at most {maximum}, got {number}")
    return number


def as_optional_int(
    name: str, value: object, *, minimum: int, maximum: int | None = None
) -> int | None:
    """Like :func:`as_int`, but None stays None."""
    return None if value is None else as_int(name, value, minimum=minimum, maximum=maximum)


def as_max_seqlen(name: str, value: object) -> int:
    """Return an upper bound of lengths, which are int32; None counts as -1, unknown."""
    return as_int(name, value, none_is=-1, minimum=-1, maximum=MAX_INT32)


def as_float(name: str, value: object) -> float:
    """Return ``value`` as a float that is finite in the float32 of the kernels."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a float, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {number}")
    if abs(number) > MAX_FLOAT32:
        raise ValueError(f"`{name}` must fit float32, at most {MAX_FLOAT32:.4g}, got {number}")
    return number


def as_flag(name: str, value: object) -> bool:
    """Return ``value`` as a bool; 0 and 1 are accepted too."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value in (0, 1):
            return bool(value)
        raise ValueError(f"`{name}` must be True, False, 1 or 0, got {value}")
    raise TypeError(f"`{name}` must be a bool, got {type(value).__name__}")


def one_of(name: str, value: object, allowed: Sequence[Name]) -> Name:
    """Return ``value``, which must be one of the ``allowed`` names, spelt exactly so."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string, got {type(value).__name__}")
    for known in allowed:
        if value == known:
            return known
    raise ValueError(f"`{name}` must be one of {', '.join(allowed)}, got {value!r}")
