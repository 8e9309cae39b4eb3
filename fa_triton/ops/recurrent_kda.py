"""``torch.ops.fa_triton.recurrent_kda`` and ``recurrent_kda_``, which updates the states given."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.delta_rule.layouts import KDA_LAYOUTS
from fa_triton.delta_rule.recurrent import advance, advance_in_place
from fa_triton.ops.definition import by_name, define, tensors_have_symbols
from fa_triton.ops.routing import KDA
from fa_triton.validation.delta_rule import check_layout
from fa_triton.validation.recurrent_kda import validate_recurrent_kda

_ROWS = "Tensor q, Tensor k, Tensor v, Tensor raw_gate, Tensor beta"
_TENSORS = (
    "cu_seqlens",
    "ssm_state_indices",
    "A_log",
    "dt_bias",
    "num_accepted_tokens",
)
# Tensors come before the options: torch records no keyword-only tensors for autograd.
_OPTIONAL = ", ".join(f"Tensor? {name}=None" for name in _TENSORS)
_OPTIONS = (
    "str layout='BSND', float? scale=None, bool state_v_first=True, "
    "bool use_qk_l2norm_in_kernel=True, bool use_gate_in_kernel=True, "
    "bool use_beta_sigmoid_in_kernel=False, bool allow_neg_eigval=False, bool safe_gate=False, "
    "float? lower_bound=None, int skip_index_below=0"
)
_NUM_ROWS = 6


def _run_in_place(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    rows, named = tensors[:_NUM_ROWS], by_name(_TENSORS, tensors[_NUM_ROWS:], options)
    return advance_in_place(*rows, **named)


def _run(*tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows, named = tensors[:_NUM_ROWS], by_name(_TENSORS, tensors[_NUM_ROWS:], options)
    return advance(*rows, **named)


def _fake_in_place(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    return _fake_out(tensors, inplace_final_state=True, **options)


def _fake(
    *tensors: torch.Tensor, output_final_state: bool = False, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    out = _fake_out(tensors, inplace_final_state=False, **options)
    state, named = tensors[_NUM_ROWS - 1], by_name(_TENSORS, tensors[_NUM_ROWS:], options)
    if not output_final_state:
        return out, state.new_empty(0)
    cu_seqlens, indices = named.get("cu_seqlens"), named.get("ssm_state_indices")
    count = state.shape[0]
    if cu_seqlens is not None:
        count = cu_seqlens.shape[0] - 1
    elif indices is not None:
        count = indices.shape[0]
    return out, state.new_empty(count, *state.shape[1:])


def _fake_out(
    tensors: tuple[torch.Tensor, ...], *, inplace_final_state: bool, **options: Any
) -> torch.Tensor:
    """The result: v, token-major; sizes are compared only where they are known."""
    v = tensors[2]
    if not tensors_have_symbols(*tensors):
        named = by_name(_TENSORS, tensors[_NUM_ROWS:], options)
        problem = validate_recurrent_kda(
            *tensors[:_NUM_ROWS], inplace_final_state=inplace_final_state, **named
        )
        return v.new_empty(problem.out_shape)
    axes = KDA_LAYOUTS[check_layout(options.get("layout", "BSND"))]
    outer = () if axes.outer is None else (v.shape[axes.outer],)
    return v.new_empty(*outer, v.shape[axes.token], v.shape[axes.head], v.shape[-1])


define(
    f"recurrent_kda_({_ROWS}, Tensor(a!) state, {_OPTIONAL}, *, {_OPTIONS}) -> Tensor",
    run=_run_in_place,
    fake=_fake_in_place,
    subject=KDA,
)
define(
    f"recurrent_kda({_ROWS}, Tensor state, {_OPTIONAL}, *, {_OPTIONS}, "
    "bool output_final_state=False) -> (Tensor, Tensor)",
    run=_run,
    fake=_fake,
    subject=KDA,
)
