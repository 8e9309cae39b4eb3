"""What keys of kept things are made of: tensors without their addresses, values that repeat."""

from __future__ import annotations

import functools
from collections.abc import Hashable

import torch


def tensor_form(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    """All that validation and a launch take from a tensor besides its address."""
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.is_neg(),
        tensor.requires_grad,
    )


@functools.lru_cache(maxsize=1024)
def identity(value: Hashable) -> Hashable:
    """An object that stands for a value in keys: equal values have the same one.

    It is hashed and compared by its address. A value that was forgotten gets another object, so
    that a key may miss what was kept for it, and never finds what was kept for another value.
    """
    return object()
