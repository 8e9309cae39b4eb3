"""The contract of ``rms_norm_gated``: arguments in, frozen problem out."""

from __future__ import annotations

import torch

from fa_triton.layer.gated_norm_problem import GatedNormProblem
from fa_triton.validation.scalars import as_float, one_of
from fa_triton.validation.tensors import (
    FLOAT_DTYPES,
    check_device,
    check_is_tensor,
    refuse_gradient,
)

SUBJECT = "the gated norm"
MAX_DIM = 1024
ACTIVATIONS = ("sigmoid", "silu", "swish")


def validate_rms_norm_gated(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "sigmoid",
) -> GatedNormProblem:
    """Check every argument of ``rms_norm_gated``, described there.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.
    """
    _check_float("x", x)
    dim = x.shape[-1] if x.ndim else 0
    if not 1 <= dim <= MAX_DIM:
        raise ValueError(
            f"`x` must have a last axis of 1 to {MAX_DIM} columns, got shape {tuple(x.shape)}"
        )
    _check_float("gate", gate)
    if gate.shape != x.shape:
        raise ValueError(
            f"`gate` must have the shape of x, {tuple(x.shape)}, got {tuple(gate.shape)}"
        )
    check_device("gate", gate, x.device, like="x")
    _check_columns("weight", weight, dim, x.device)
    if bias is not None:
        _check_columns("bias", bias, dim, x.device)
    number = as_float("eps", eps)
    if number < 0:
        raise ValueError(f"`eps` must not be negative, got {number}")
    return GatedNormProblem(
        dim=dim,
        dtype=x.dtype,
        gate_dtype=gate.dtype,
        weight_dtype=weight.dtype,
        bias_dtype=None if bias is None else bias.dtype,
        eps=number,
        has_silu=one_of("activation", activation, ACTIVATIONS) != "sigmoid",
    )


def _check_columns(name: str, value: torch.Tensor, dim: int, device: torch.device) -> None:
    """A number per column of x."""
    _check_float(name, value)
    check_device(name, value, device, like="x")
    if tuple(value.shape) != (dim,) or not value.is_contiguous():
        raise ValueError(
            f"`{name}` must have shape ({dim},) and be contiguous, got shape "
            f"{tuple(value.shape)} and strides {value.stride()}"
        )


def _check_float(name: str, value: object) -> None:
    tensor = check_is_tensor(name, value)
    if tensor.dtype not in FLOAT_DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)
        raise TypeError(f"`{name}` must have dtype {allowed}, got {tensor.dtype}")
    refuse_gradient(name, tensor, subject=SUBJECT)
