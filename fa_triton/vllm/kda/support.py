"""Whether a KDA call can be served here, or why it goes back to the function that it replaced."""

from __future__ import annotations

import torch

DTYPES = (torch.float16, torch.bfloat16)
DIM_MULTIPLE = 16
MAX_DIM = 256
MAX_HEADS = 128
LEAST_BOUND = -5.0


def reason_against(
    dtype: torch.dtype,
    num_heads: int,
    num_v_heads: int,
    key_dim: int,
    value_dim: int,
    lower_bound: float | None,
) -> str | None:
    """Say why KDA of this form cannot be served here; None if it can."""
    if dtype not in DTYPES:
        return f"q, k and v must be float16 or bfloat16, got {dtype}"
    for name, dim in (("key", key_dim), ("value", value_dim)):
        if dim % DIM_MULTIPLE or not 0 < dim <= MAX_DIM:
            return (
                f"the {name} head dimension must be a multiple of {DIM_MULTIPLE} up to {MAX_DIM}, "
                f"got {dim}"
            )
    if num_v_heads > MAX_HEADS or num_v_heads % num_heads:
        return (
            f"value heads must be a multiple of the {num_heads} heads of q and at most "
            f"{MAX_HEADS}, got {num_v_heads}"
        )
    if lower_bound is not None and not LEAST_BOUND <= lower_bound < 0:
        return f"the least decay must lie in [{LEAST_BOUND:g}, 0), got {lower_bound:g}"
    return None
