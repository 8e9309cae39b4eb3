"""Calls of the short convolutions: validate, describe, bring rows in order, launch."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from fa_triton.device import cpu_mode, device_info
from fa_triton.launch import runner
from fa_triton.layer.convolution_values import check_convolution_values
from fa_triton.layer.convolution_variants import fn_form, update_form
from fa_triton.layer.reference import convolve_by_reference, update_by_reference
from fa_triton.validation import check_has_memory, value_checks_enabled
from fa_triton.validation.convolution import (
    validate_causal_conv1d_fn,
    validate_causal_conv1d_update,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.kernel_form import KernelForm
    from fa_triton.layer.convolution_problem import ConvolutionProblem


class ConvolutionOptions(TypedDict, total=False):
    """Arguments of ``causal_conv1d_fn`` besides x and weight."""

    bias: torch.Tensor | None
    activation: str | bool | None
    conv_states: torch.Tensor | None
    has_initial_state: torch.Tensor | None
    cache_indices: torch.Tensor | None
    query_start_loc: torch.Tensor | None
    pad_slot_id: int


class UpdateOptions(TypedDict, total=False):
    """Arguments of ``causal_conv1d_update`` besides x, states and weight."""

    bias: torch.Tensor | None
    activation: str | bool | None
    conv_state_indices: torch.Tensor | None
    num_accepted_tokens: torch.Tensor | None
    query_start_loc: torch.Tensor | None
    max_query_len: int
    pad_slot_id: int


def convolve(
    x: torch.Tensor, weight: torch.Tensor, **options: Unpack[ConvolutionOptions]
) -> torch.Tensor:
    """Convolve as ``causal_conv1d_fn`` says."""
    problem = validate_causal_conv1d_fn(x, weight, **options)
    starts, indices = options.get("query_start_loc"), options.get("cache_indices")
    if value_checks_enabled():
        check_convolution_values(problem, "cache_indices", starts, indices, None)
    if x.device.type == "cpu" and cpu_mode() == "reference":
        return convolve_by_reference(x, weight, **options)
    rows = _channels_last(x, -2)
    skips = starts is not None or indices is not None
    out = _rows_like(rows, skips)
    if out.numel():
        from fa_triton.kernels.causal_conv1d import causal_conv1d

        states, kept = options.get("conv_states"), options.get("has_initial_state")
        form = fn_form(problem, _given(options))
        tiles = -(-problem.dim // _constant(form, "BLOCK_C"))
        parts = _parts(problem, tiles, _constant(form, "BLOCK_T"), x.device)
        _launch(
            causal_conv1d,
            form,
            problem,
            num_tasks=problem.num_sequences * parts * tiles,
            num_parts=parts,
            rows=rows,
            out=out,
            weight=weight,
            bias=options.get("bias"),
            states=states,
            conv_states=states,
            has_initial_state=None if kept is None else kept.view(torch.int8),
            cache_indices=indices,
            query_start_loc=starts,
            stride_index=0 if indices is None else indices.stride(0),
        )
    return out.transpose(-1, -2)


def update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    **options: Unpack[UpdateOptions],
) -> torch.Tensor:
    """Convolve as ``causal_conv1d_update`` says."""
    problem = validate_causal_conv1d_update(x, conv_state, weight, **options)
    starts, indices = options.get("query_start_loc"), options.get("conv_state_indices")
    accepted = options.get("num_accepted_tokens")
    if value_checks_enabled():
        check_convolution_values(problem, "conv_state_indices", starts, indices, accepted)
    if x.device.type == "cpu" and cpu_mode() == "reference":
        return update_by_reference(x, conv_state, weight, **options)
    if problem.is_packed:
        rows = _channels_last(x, -1)
    else:
        rows = _channels_last(x if x.ndim == 3 else x[..., None], -2)
    out = _rows_like(rows, problem.is_packed or indices is not None)
    if out.numel():
        from fa_triton.kernels.causal_conv1d_update import causal_conv1d_update

        form = update_form(problem, _given(options))
        tiles = -(-problem.dim // _constant(form, "BLOCK_C"))
        _launch(
            causal_conv1d_update,
            form,
            problem,
            num_tasks=problem.num_sequences * tiles,
            num_columns=problem.num_columns,
            rows=rows,
            out=out,
            weight=weight,
            bias=options.get("bias"),
            states=conv_state,
            conv_state=conv_state,
            conv_state_indices=indices,
            num_accepted_tokens=accepted,
            query_start_loc=starts,
            stride_index=0 if indices is None else indices.stride(0),
        )
    if problem.is_packed:
        return out
    return out.transpose(1, 2) if x.ndim == 3 else out[:, 0]


def _launch(
    kernel: Any,
    form: KernelForm,
    problem: ConvolutionProblem,
    *,
    num_tasks: int,
    rows: torch.Tensor,
    out: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor | None,
    **arguments: Any,
) -> None:
    for name, tensor in (("x", rows), ("weight", weight)):
        check_has_memory(name, tensor)
    taps = weight.t()
    if taps.stride(1) != 1 or len(taps) * taps.stride(0) >= 2**31:
        taps = taps.contiguous()
    state_strides = (0, 1, 0) if states is None else states.stride()
    programs = min(num_tasks, device_info(out.device).num_aiv)
    runner(kernel)[(programs,)](
        x=rows,
        weight=taps,
        out=out,
        num_tasks=num_tasks,
        num_tokens=problem.num_tokens,
        dim=problem.dim,
        num_slots=problem.num_slots,
        pad_slot_id=problem.pad_slot_id,
        stride_xb=rows.stride(0) if rows.ndim == 3 else 0,
        stride_xt=rows.stride(-2),
        stride_ob=out.stride(0) if out.ndim == 3 else 0,
        stride_ot=out.stride(-2),
        stride_wt=taps.stride(0),
        stride_ss=state_strides[0],
        stride_sc=state_strides[1],
        stride_st=state_strides[2],
        **arguments,
        **dict(form.constants),
        variant=form.key,
    )


def _channels_last(x: torch.Tensor, axis: int) -> torch.Tensor:
    """View with channels as the last axis, copied where they are not dense in memory."""
    rows = x.transpose(axis, -1)
    return rows if rows.stride(-1) == 1 or rows.shape[-1] == 1 else rows.contiguous()


def _rows_like(rows: torch.Tensor, skips: bool) -> torch.Tensor:
    """Memory of the result; rows of no sequence stay 0."""
    allocate = torch.zeros if skips else torch.empty
    return allocate(rows.shape, dtype=rows.dtype, device=rows.device)


def _parts(problem: ConvolutionProblem, tiles: int, rows: int, device: torch.device) -> int:
    """Parts of a sequence, so that every vector core has a task; known without the lengths."""
    cores = device_info(device).num_aiv
    wanted = -(-cores // (problem.num_sequences * tiles))
    return max(1, min(wanted, -(-problem.num_tokens // rows)))


def _given(options: ConvolutionOptions | UpdateOptions) -> Collection[str]:
    return frozenset(name for name, value in options.items() if isinstance(value, torch.Tensor))


@functools.lru_cache(maxsize=256)
def _constant(form: KernelForm, name: str) -> int:
    return dict(form.constants)[name]
