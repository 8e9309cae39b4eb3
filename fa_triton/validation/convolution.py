"""The contract of ``causal_conv1d_fn`` and ``causal_conv1d_update``: arguments in, problem out."""

from __future__ import annotations

import torch

from fa_triton.layer.convolution_problem import ConvolutionProblem
from fa_triton.validation.scalars import MAX_INT32, as_int
from fa_triton.validation.tensors import (
    FLOAT_DTYPES,
    check_device,
    check_index_tensor,
    check_is_tensor,
    refuse_gradient,
)

SUBJECT = "the short convolution"
WIDTHS = range(2, 6)
ACTIVATIONS = ("silu", "swish")


def validate_causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    conv_states: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    pad_slot_id: int = -1,
) -> ConvolutionProblem:
    """Check every argument of ``causal_conv1d_fn``, described there, without reading a device.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.
    """
    _check_float("x", x)
    if x.ndim not in (2, 3):
        raise ValueError(f"`x` must have axes (dim, T) or (B, dim, T), got shape {tuple(x.shape)}")
    dim, num_tokens = x.shape[-2], x.shape[-1]
    width = _check_filter(x, dim, weight, bias)
    batch = 1 if x.ndim == 2 else x.shape[0]
    if query_start_loc is not None:
        if x.ndim != 2:
            raise ValueError(
                f"`x` must have axes (dim, T) with query_start_loc, got shape {tuple(x.shape)}"
            )
        batch = _check_starts(query_start_loc, x.device)
    for name, tensor in (
        ("has_initial_state", has_initial_state),
        ("cache_indices", cache_indices),
    ):
        if tensor is not None and conv_states is None:
            raise ValueError(f"`{name}` must be None without conv_states, got a tensor")
    if has_initial_state is not None:
        _check_flags(has_initial_state, batch, x.device)
    if cache_indices is not None:
        _check_per_sequence("cache_indices", cache_indices, batch, x.device)
    slots, columns = 0, 0
    if conv_states is not None:
        slots, columns = _check_states(
            "conv_states", conv_states, x, dim, width - 1, batch, cache_indices is not None
        )
    return ConvolutionProblem(
        num_sequences=batch,
        num_tokens=num_tokens,
        longest=num_tokens,
        dim=dim,
        width=width,
        dtype=x.dtype,
        weight_dtype=weight.dtype,
        bias_dtype=None if bias is None else bias.dtype,
        state_dtype=None if conv_states is None else conv_states.dtype,
        num_slots=slots,
        num_columns=columns,
        is_packed=query_start_loc is not None,
        has_accepted=False,
        has_silu=_check_activation(activation),
        pad_slot_id=_check_pad(pad_slot_id),
    )


def validate_causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    max_query_len: int = -1,
    pad_slot_id: int = -1,
) -> ConvolutionProblem:
    """Check every argument of ``causal_conv1d_update``, described there, without reading a device.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.
    """
    _check_float("x", x)
    is_packed = query_start_loc is not None
    longest = as_int("max_query_len", max_query_len, minimum=-1, maximum=MAX_INT32)
    if is_packed:
        if x.ndim != 2:
            raise ValueError(
                f"`x` must have axes (T, dim) with query_start_loc, got shape {tuple(x.shape)}"
            )
        num_tokens, dim = x.shape
        batch = _check_starts(query_start_loc, x.device)
    else:
        if x.ndim not in (2, 3):
            raise ValueError(
                f"`x` must have axes (B, dim) or (B, dim, L), got shape {tuple(x.shape)}"
            )
        batch, dim = x.shape[:2]
        num_tokens = 1 if x.ndim == 2 else x.shape[2]
        if longest >= 0:
            raise ValueError(
                f"`max_query_len` must be -1 without query_start_loc, got {longest}; the shape of "
                "x says it"
            )
    width = _check_filter(x, dim, weight, bias)
    if conv_state_indices is not None:
        _check_per_sequence("conv_state_indices", conv_state_indices, batch, x.device)
    room = width - 1
    if num_accepted_tokens is not None:
        accepted = _check_per_sequence("num_accepted_tokens", num_accepted_tokens, batch, x.device)
        if not accepted.is_contiguous():
            raise ValueError(
                f"`num_accepted_tokens` must be contiguous, got strides {accepted.stride()}; "
                "call num_accepted_tokens.contiguous()"
            )
        if is_packed and longest < 1:
            raise ValueError(
                "`max_query_len` must be the longest query with num_accepted_tokens and "
                f"query_start_loc, got {longest}"
            )
        room += (longest if is_packed else num_tokens) - 1
    slots, columns = _check_states(
        "conv_state", conv_state, x, dim, room, batch, conv_state_indices is not None
    )
    return ConvolutionProblem(
        num_sequences=batch,
        num_tokens=num_tokens,
        longest=longest if is_packed and longest > 0 else num_tokens,
        dim=dim,
        width=width,
        dtype=x.dtype,
        weight_dtype=weight.dtype,
        bias_dtype=None if bias is None else bias.dtype,
        state_dtype=conv_state.dtype,
        num_slots=slots,
        num_columns=columns,
        is_packed=is_packed,
        has_accepted=num_accepted_tokens is not None,
        has_silu=_check_activation(activation),
        pad_slot_id=_check_pad(pad_slot_id),
    )


def _check_float(name: str, value: object) -> torch.Tensor:
    tensor = check_is_tensor(name, value)
    if tensor.dtype not in FLOAT_DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)
        raise TypeError(f"`{name}` must have dtype {allowed}, got {tensor.dtype}")
    refuse_gradient(name, tensor, subject=SUBJECT)
    return tensor


def _check_filter(x: torch.Tensor, dim: int, weight: object, bias: object) -> int:
    """Check weight and bias; return the number of taps."""
    if dim < 1:
        raise ValueError(f"`x` must have channels, got shape {tuple(x.shape)}")
    tensor = _check_float("weight", weight)
    if tensor.ndim != 2 or tensor.shape[0] != dim or tensor.shape[1] not in WIDTHS:
        raise ValueError(
            f"`weight` must have shape ({dim}, width) with a width from {WIDTHS[0]} to "
            f"{WIDTHS[-1]}, got {tuple(tensor.shape)}"
        )
    check_device("weight", tensor, x.device, like="x")
    if bias is not None:
        b_tensor = _check_float("bias", bias)
        if tuple(b_tensor.shape) != (dim,):
            raise ValueError(f"`bias` must have shape ({dim},), got {tuple(b_tensor.shape)}")
        if not b_tensor.is_contiguous():
            raise ValueError(
                f"`bias` must be contiguous, got strides {b_tensor.stride()}; "
                "call bias.contiguous()"
            )
        check_device("bias", b_tensor, x.device, like="x")
    return tensor.shape[1]


def _check_starts(value: object, device: torch.device) -> int:
    """Check ``query_start_loc``; return the number of sequences."""
    tensor = check_index_tensor(
        "query_start_loc", value, shape=(None,), device=device, meaning="(N + 1,)", like="x"
    )
    if tensor.shape[0] < 2 or not tensor.is_contiguous():
        raise ValueError(
            f"`query_start_loc` must have shape (N + 1,), N >= 1, and be contiguous, got shape "
            f"{tuple(tensor.shape)} and strides {tensor.stride()}"
        )
    return tensor.shape[0] - 1


def _check_per_sequence(
    name: str, value: object, num_sequences: int, device: torch.device
) -> torch.Tensor:
    return check_index_tensor(
        name,
        value,
        shape=(num_sequences,),
        device=device,
        meaning=f"({num_sequences},), one per sequence",
        like="x",
    )


def _check_flags(value: object, num_sequences: int, device: torch.device) -> None:
    tensor = check_is_tensor("has_initial_state", value)
    if tensor.dtype != torch.bool:
        raise TypeError(f"`has_initial_state` must have dtype bool, got {tensor.dtype}")
    if tuple(tensor.shape) != (num_sequences,) or not tensor.is_contiguous():
        raise ValueError(
            f"`has_initial_state` must have shape ({num_sequences},) and be contiguous, got shape "
            f"{tuple(tensor.shape)} and strides {tensor.stride()}"
        )
    check_device("has_initial_state", tensor, device, like="x")


def _check_states(
    name: str,
    value: object,
    x: torch.Tensor,
    dim: int,
    room: int,
    num_sequences: int,
    has_indices: bool,
) -> tuple[int, int]:
    """Check the states; return slots and columns."""
    tensor = _check_float(name, value)
    check_device(name, tensor, x.device, like="x")
    got = tuple(tensor.shape)
    if len(got) != 3 or got[0] < 1 or got[1] != dim or got[2] < room:
        raise ValueError(
            f"`{name}` must have shape (slots, {dim}, columns) with at least {room} columns, "
            f"got {got}"
        )
    if not has_indices and got[0] < num_sequences:
        raise ValueError(
            f"`{name}` must hold a state for each of {num_sequences} sequences, got {got[0]}"
        )
    if any(stride < 1 < size for stride, size in zip(tensor.stride(), got, strict=True)):
        raise ValueError(f"`{name}` must keep its elements apart, got strides {tensor.stride()}")
    if (dim - 1) * tensor.stride(1) + (got[2] - 1) * tensor.stride(2) >= 2**31:
        # a kernel counts offsets inside a state in 32 bits
        raise ValueError(
            f"`{name}` must hold a state within 2^31 elements, got strides {tensor.stride()}"
        )
    return got[0], got[2]


def _check_activation(activation: object) -> bool:
    """Whether the result is activated: silu, swish or True; None or False for no."""
    if activation is None or isinstance(activation, bool):
        return bool(activation)
    if not isinstance(activation, str):
        raise TypeError(
            f"`activation` must be a string, a bool or None, got {type(activation).__name__}"
        )
    if activation not in ACTIVATIONS:
        raise ValueError(f"`activation` must be silu, swish or None, got {activation!r}")
    return True


def _check_pad(pad_slot_id: object) -> int:
    return as_int("pad_slot_id", pad_slot_id, minimum=-(2**31), maximum=MAX_INT32)
