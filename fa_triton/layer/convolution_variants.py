"""Compile-time arguments of the short convolutions, and the forms of them that calls run."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fa_triton.kernel_form import KernelForm, dtype_name
from fa_triton.padding import padded

if TYPE_CHECKING:
    import torch

    from fa_triton.layer.convolution_problem import ConvolutionProblem

FN = "causal_conv1d"
UPDATE = "causal_conv1d_update"
# Tensors that a call may leave out, in the order of the kernels' arguments.
FN_TENSORS = ("bias", "conv_states", "has_initial_state", "cache_indices", "query_start_loc")
UPDATE_TENSORS = ("bias", "conv_state_indices", "num_accepted_tokens", "query_start_loc")
ROWS = 16
CHANNELS = 256
UPDATE_ROWS = 8


def fn_constants(dim: int, width: int, *, has_silu: bool) -> dict[str, int | bool]:
    """Compile-time arguments of ``causal_conv1d``."""
    return {
        "WIDTH": width,
        "BLOCK_T": ROWS,
        "BLOCK_C": channel_tile(dim),
        "BLOCK_S": _state_rows(width - 1),
        "HAS_SILU": has_silu,
    }


def update_constants(
    dim: int, width: int, longest: int, columns: int, *, has_silu: bool
) -> dict[str, int | bool]:
    """Compile-time arguments of ``causal_conv1d_update``; ``columns`` of a state are written."""
    return {
        "WIDTH": width,
        "BLOCK_T": min(UPDATE_ROWS, padded(longest)),
        "BLOCK_C": channel_tile(dim),
        "BLOCK_S": _state_rows(columns),
        "HAS_SILU": has_silu,
    }


def channel_tile(dim: int) -> int:
    """Channels of one task."""
    return min(CHANNELS, padded(dim, 16))


def fn_form(problem: ConvolutionProblem, tensors: Collection[str]) -> KernelForm:
    """Form of ``causal_conv1d`` that serves a call with these optional tensors."""
    constants = fn_constants(problem.dim, problem.width, has_silu=problem.has_silu)
    return _form(FN, problem, constants, FN_TENSORS, tensors)


def update_form(problem: ConvolutionProblem, tensors: Collection[str]) -> KernelForm:
    """Form of ``causal_conv1d_update`` that serves a call with these optional tensors."""
    columns = problem.width - 1
    if problem.has_accepted:
        columns = min(problem.width - 2 + problem.longest, problem.num_columns)
    constants = update_constants(
        problem.dim, problem.width, problem.longest, columns, has_silu=problem.has_silu
    )
    return _form(UPDATE, problem, constants, UPDATE_TENSORS, tensors)


def _form(
    kernel: str,
    problem: ConvolutionProblem,
    constants: dict[str, int | bool],
    optional: tuple[str, ...],
    tensors: Collection[str],
) -> KernelForm:
    dtypes: dict[str, torch.dtype | None] = {
        "weight": problem.weight_dtype,
        "bias": problem.bias_dtype,
        "state": problem.state_dtype,
    }
    return KernelForm(
        kernel,
        dtype_name(problem.dtype),
        tuple(constants.items()),
        tuple(name for name in optional if name in tensors),
        tuple((name, dtype_name(dtype)) for name, dtype in dtypes.items() if dtype is not None),
    )


def _state_rows(columns: int) -> int:
    """Rows of the tile that holds a state; triton-ascend 3.2.0 crashes on some of two rows."""
    return padded(columns, 4)
