"""Compile-time arguments of ``rms_norm_gated``, and the form of it that a call runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa_triton.kernel_form import KernelForm, dtype_name
from fa_triton.padding import padded

if TYPE_CHECKING:
    import torch

    from fa_triton.layer.gated_norm_problem import GatedNormProblem

NORM = "rms_norm_gated"
NORM_TENSORS = ("bias",)
# Elements of a tile; a row of an even larger one has its own.
TILE = 4096


def norm_constants(dim: int, *, has_silu: bool) -> dict[str, int | bool]:
    """Compile-time arguments of ``rms_norm_gated``."""
    columns = padded(dim, 16)
    return {"BLOCK_R": max(1, TILE // columns), "BLOCK_D": columns, "HAS_SILU": has_silu}


def norm_form(problem: GatedNormProblem) -> KernelForm:
    """Form of the kernel that serves a call."""
    dtypes: dict[str, torch.dtype | None] = {
        "gate": problem.gate_dtype,
        "weight": problem.weight_dtype,
        "bias": problem.bias_dtype,
    }
    constants = norm_constants(problem.dim, has_silu=problem.has_silu)
    return KernelForm(
        NORM,
        dtype_name(problem.dtype),
        tuple(constants.items()),
        () if problem.bias_dtype is None else NORM_TENSORS,
        tuple((name, dtype_name(dtype)) for name, dtype in dtypes.items() if dtype is not None),
    )
