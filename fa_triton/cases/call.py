"""A call of ``flash_attn`` described without tensors: shapes, dtypes, small values, options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fa_triton.cases.case import Range

# The names of flash_attn's tensor arguments besides q, k, v and the plan.
LENGTH_NAMES = ("cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Operand:
    """One of q, k, v.

    Attributes:
        shape: Its axes in its layout.
        dtype: Of its elements.
        value_range: Bounds of uniform values; None for normal ones.
        padded_axes: Axes that are longer in memory than in the view.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    value_range: Range | None = None
    padded_axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Small:
    """A tensor beside q, k and v; ``values`` is None where they do not matter."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    values: np.ndarray | None = None


@dataclass(frozen=True)
class CaseCall:
    """One call.

    Attributes:
        q: Queries.
        k: Keys.
        v: Values.
        small: The other tensors by argument name.
        options: The arguments that are no tensors.
        out_shape: What the case says the result's shape is, None where it says nothing.
        lse_shape: The same of the log-sum-exp.
    """

    q: Operand
    k: Operand
    v: Operand
    small: dict[str, Small] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    out_shape: tuple[int, ...] | None = None
    lse_shape: tuple[int, ...] | None = None

    def lengths(self) -> dict[str, np.ndarray]:
        """Values of the length tensors, as far as they are known."""
        found = {name: self.small[name].values for name in LENGTH_NAMES if name in self.small}
        return {name: values for name, values in found.items() if values is not None}


def ints(values: np.ndarray | list[int] | list[list[int]]) -> Small:
    """Describe an int32 tensor with these values."""
    array = np.asarray(values, dtype=np.int32)
    return Small(array.shape, torch.int32, array)


def mask_template() -> Small:
    """Describe the operator's mask template."""
    return Small((2048, 2048), torch.int8)
