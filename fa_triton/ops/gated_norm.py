"""``torch.ops.fa_triton.rms_norm_gated``."""

from __future__ import annotations

import torch

from fa_triton.layer.gated_norm import normalise
from fa_triton.ops.definition import define, tensors_have_symbols
from fa_triton.validation.gated_norm import SUBJECT, validate_rms_norm_gated

_SCHEMA = (
    "rms_norm_gated(Tensor x, Tensor gate, Tensor weight, Tensor? bias=None, *, float eps=1e-05, "
    "str activation='sigmoid') -> Tensor"
)


def _fake(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "sigmoid",
) -> torch.Tensor:
    if not tensors_have_symbols(x, gate, weight, bias):
        validate_rms_norm_gated(x, gate, weight, bias, eps=eps, activation=activation)
    return x.new_empty(x.shape)


define(_SCHEMA, run=normalise, fake=_fake, subject=SUBJECT)
