"""``causal_conv1d_fn`` and ``causal_conv1d_update``: what they take, return and promise."""

from __future__ import annotations

import torch

from fa_triton.layer.convolution import ConvolutionOptions, UpdateOptions, convolve, update
from fa_triton.ops.routing import goes_through_dispatcher
from fa_triton.validation.convolution import SUBJECT


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    conv_states: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    pad_slot_id: int = -1,
) -> torch.Tensor:
    """Short causal convolution of whole sequences, each channel on its own: prefill.

    ``out[c, t] = act(bias[c] + sum_j weight[c, j] x[c, t - width + 1 + j])``. What precedes the
    first token is the sequence's state, or 0.

    Args:
        x: Packed sequences ``[dim, T]``, or equal ones ``[B, dim, T]``; fp16, bf16 or fp32. Used
            where it lies if channels are dense in memory (``rows.t()`` of rows ``[T, dim]``), else
            copied.
        weight: Filter ``[dim, width]``, width 2 to 5, fp16, bf16 or fp32. Used where it lies if it
            is ``taps.t()`` of dense taps ``[width, dim]``, else copied.
        bias: ``[dim]``, fp16, bf16 or fp32.
        activation: ``silu``, ``swish`` (the same) or True; None for none.
        conv_states: States ``[slots, dim, columns]``, fp16, bf16 or fp32, any strides, each within
            2^31 elements; the last ``width - 1`` tokens of a sequence lie in the first columns,
            oldest first.
        has_initial_state: Which sequences start from their state ``[N]``, bool; None for none.
        cache_indices: Slot of each sequence ``[N]``, int32 or int64; None for its number.
        query_start_loc: Starts of the packed sequences ``[N + 1]``, int32 or int64; None for one.
        pad_slot_id: Index of a sequence that is not there.

    Returns:
        ``out``, shape and dtype of x, channels dense in memory. Rows of sequences that are not
        there and tokens past the last start are 0.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.

    Notes:
        Mutates ``conv_states``: every sequence with tokens leaves its state. Other slots, columns
        from ``width - 1`` on, and slots of empty sequences keep their bits. Arithmetic is fp32. No
        host sync: index tensors are read by the kernel, an index outside the states counts as one
        that is not there. ``FA_TRITON_CHECK_VALUES=1`` checks them, with a sync.
        Source: vLLM ``causal_conv1d_fn``.
    """
    options: ConvolutionOptions = {
        "bias": bias,
        "activation": _name_of(activation),
        "conv_states": conv_states,
        "has_initial_state": has_initial_state,
        "cache_indices": cache_indices,
        "query_start_loc": query_start_loc,
        "pad_slot_id": pad_slot_id,
    }
    tensors = (x, weight, bias, conv_states, has_initial_state, cache_indices, query_start_loc)
    if goes_through_dispatcher(*tensors, subject=SUBJECT):
        return torch.ops.fa_triton.causal_conv1d_fn(x, weight, **options)
    return convolve(x, weight, **options)


def causal_conv1d_update(
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
) -> torch.Tensor:
    """Short causal convolution of the next tokens of sequences: decode.

    Args:
        x: One token each ``[B, dim]``, some ``[B, dim, L]``, or packed ones ``[T, dim]`` with
            ``query_start_loc``; fp16, bf16 or fp32. Copied if channels are not dense in memory.
        conv_state: States ``[slots, dim, columns]``, fp16, bf16 or fp32, any strides, each within
            2^31 elements; at least ``width - 1`` columns, with ``num_accepted_tokens``
            ``width - 2`` and the most tokens.
        weight: Filter ``[dim, width]``, width 2 to 5, fp16, bf16 or fp32. Used where it lies if it
            is ``taps.t()`` of dense taps ``[width, dim]``, else copied.
        bias: ``[dim]``, fp16, bf16 or fp32.
        activation: ``silu``, ``swish`` (the same) or True; None for none.
        conv_state_indices: Slot of each sequence ``[N]``, int32 or int64, any stride; None for its
            number.
        num_accepted_tokens: How many tokens of the step before were accepted ``[N]``, int32 or
            int64: the history starts at that column, counted from 1, and the state takes the
            history without its oldest token, then all tokens: one window per possible outcome.
        query_start_loc: Starts of packed sequences ``[N + 1]``, int32 or int64.
        max_query_len: Most tokens of a sequence, with ``query_start_loc``; -1 unknown, which
            ``num_accepted_tokens`` does not allow.
        pad_slot_id: Index of a sequence that is not there.

    Returns:
        ``out``, shape and dtype of x. Rows of sequences that are not there and tokens past the last
        start are 0.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.

    Notes:
        Mutates ``conv_state``; slots that no sequence with tokens names, and columns behind the
        last one that counts, keep their bits. Arithmetic is fp32. No host sync: index tensors are
        read by the kernel, an index outside the states counts as one that is not there.
        ``FA_TRITON_CHECK_VALUES=1`` checks them, with a sync.
        Source: vLLM ``causal_conv1d_update``.
    """
    options: UpdateOptions = {
        "bias": bias,
        "activation": _name_of(activation),
        "conv_state_indices": conv_state_indices,
        "num_accepted_tokens": num_accepted_tokens,
        "query_start_loc": query_start_loc,
        "max_query_len": max_query_len,
        "pad_slot_id": pad_slot_id,
    }
    tensors = (x, conv_state, weight, bias, conv_state_indices, num_accepted_tokens)
    if goes_through_dispatcher(*tensors, query_start_loc, subject=SUBJECT):
        return torch.ops.fa_triton.causal_conv1d_update(x, conv_state, weight, **options)
    return update(x, conv_state, weight, **options)


def _name_of(activation: str | bool | None) -> str | None:
    """Name of an activation that may be given as a flag."""
    return ("silu" if activation else None) if isinstance(activation, bool) else activation
