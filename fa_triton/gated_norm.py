"""``rms_norm_gated``: what it takes, returns and promises."""

from __future__ import annotations

import torch

from fa_triton.layer.gated_norm import normalise
from fa_triton.ops.routing import goes_through_dispatcher
from fa_triton.validation.gated_norm import SUBJECT


def rms_norm_gated(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "sigmoid",
) -> torch.Tensor:
    """RMS norm of rows, times an activated gate: the output norm of a KDA layer.

    ``out = (x / sqrt(mean(x^2) + eps) * weight + bias) * act(gate)``, row by row.

    Args:
        x: Rows ``[.., D]``, D up to 1024, fp16, bf16 or fp32; any leading axes. Used where they lie
            if columns are dense and all leading axes, or all but the last of them, can be viewed as
            one; else copied.
        gate: Gate before its activation, shape of x, fp16, bf16 or fp32; strides as for x.
        weight: ``[D]``, fp16, bf16 or fp32.
        bias: ``[D]``, fp16, bf16 or fp32, or None.
        eps: Added to the mean of squares, natural units.
        activation: ``sigmoid``, or ``silu`` (``swish`` is the same).

    Returns:
        ``out``, shape and dtype of x, contiguous.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.

    Notes:
        Arithmetic is fp32, rounded once. No host sync; nothing is mutated. Source:
        flash-linear-attention ``FusedRMSNormGated``.
    """
    if goes_through_dispatcher(x, gate, weight, bias, subject=SUBJECT):
        return torch.ops.fa_triton.rms_norm_gated(
            x, gate, weight, bias, eps=eps, activation=activation
        )
    return normalise(x, gate, weight, bias, eps=eps, activation=activation)
