"""``torch.ops.fa_triton.merge_attn_states``."""

from __future__ import annotations

import torch

from fa_triton.attention.merging import merge_states
from fa_triton.ops.definition import define, tensors_have_symbols
from fa_triton.validation import check_states_form, validate_states

_SCHEMA = (
    "merge_attn_states(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b, *, "
    "str layout='TND') -> (Tensor, Tensor)"
)


def _run(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    *,
    layout: str = "TND",
) -> tuple[torch.Tensor, torch.Tensor]:
    validate_states(out_a, lse_a, out_b, lse_b, layout)
    return merge_states(out_a, lse_a, out_b, lse_b, layout)


def _fake(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    *,
    layout: str = "TND",
) -> tuple[torch.Tensor, torch.Tensor]:
    parts = (out_a, lse_a, out_b, lse_b)
    check = check_states_form if tensors_have_symbols(*parts) else validate_states
    check(*parts, layout)
    # the same arithmetic has the same strides
    return merge_states(*parts, layout)


define(_SCHEMA, run=_run, fake=_fake)
