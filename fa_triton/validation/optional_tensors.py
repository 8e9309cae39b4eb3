"""Optional tensors of CANN's operators: an empty one counts as absent."""

from __future__ import annotations

import torch

from fa_triton.validation.tensors import check_is_tensor


def as_given(name: str, value: object) -> torch.Tensor | None:
    """Return the tensor; None where it is None or has no element."""
    if value is None:
        return None
    tensor = check_is_tensor(name, value)
    return tensor if tensor.numel() else None
