"""``torch.ops.fa_triton.causal_conv1d_fn`` and ``causal_conv1d_update``, which write states."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.layer.convolution import convolve, update
from fa_triton.ops.definition import by_name, define, has_symbols, tensors_have_symbols
from fa_triton.validation.convolution import (
    SUBJECT,
    validate_causal_conv1d_fn,
    validate_causal_conv1d_update,
)

_FN_SCHEMA = (
    "causal_conv1d_fn(Tensor x, Tensor weight, Tensor? bias=None, Tensor(a!)? conv_states=None, "
    "Tensor? has_initial_state=None, Tensor? cache_indices=None, Tensor? query_start_loc=None, *, "
    "str? activation='silu', int pad_slot_id=-1) -> Tensor"
)
_FN_TENSORS = ("bias", "conv_states", "has_initial_state", "cache_indices", "query_start_loc")
_UPDATE_SCHEMA = (
    "causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias=None, "
    "Tensor? conv_state_indices=None, Tensor? num_accepted_tokens=None, "
    "Tensor? query_start_loc=None, *, str? activation=None, SymInt max_query_len=-1, "
    "int pad_slot_id=-1) -> Tensor"
)
_UPDATE_TENSORS = ("bias", "conv_state_indices", "num_accepted_tokens", "query_start_loc")


def _run_fn(
    x: torch.Tensor, weight: torch.Tensor, *args: torch.Tensor | None, **options: Any
) -> torch.Tensor:
    return convolve(x, weight, **by_name(_FN_TENSORS, args, options))


def _fake_fn(
    x: torch.Tensor, weight: torch.Tensor, *args: torch.Tensor | None, **options: Any
) -> torch.Tensor:
    if not tensors_have_symbols(x, weight, *args):
        validate_causal_conv1d_fn(x, weight, **by_name(_FN_TENSORS, args, options))
    return x.new_empty(x.transpose(-1, -2).shape).transpose(-1, -2)


def _run_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    *args: torch.Tensor | None,
    **options: Any,
) -> torch.Tensor:
    return update(x, conv_state, weight, **by_name(_UPDATE_TENSORS, args, options))


def _fake_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    *args: torch.Tensor | None,
    **options: Any,
) -> torch.Tensor:
    if not (tensors_have_symbols(x, conv_state, weight, *args) or has_symbols(*options.values())):
        named = by_name(_UPDATE_TENSORS, args, options)
        validate_causal_conv1d_update(x, conv_state, weight, **named)
    if x.ndim == 2:
        return x.new_empty(x.shape)
    return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)


define(_FN_SCHEMA, run=_run_fn, fake=_fake_fn, subject=SUBJECT)
define(_UPDATE_SCHEMA, run=_run_update, fake=_fake_update, subject=SUBJECT)
