"""The short convolutions and the gated norm in eager float64: one sequence, one token at a time."""

from __future__ import annotations

from itertools import pairwise

import torch


def convolve_by_reference(
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
    """Answer as ``causal_conv1d_fn`` does, rounded to the dtypes of x and of the states."""
    history = weight.shape[1] - 1
    out = torch.zeros_like(x)
    for n, (x_part, out_part) in enumerate(_sequences(x, out, query_start_loc)):
        slot = n if cache_indices is None else int(cache_indices[n])
        is_there = cache_indices is None or slot != pad_slot_id
        if conv_states is not None:
            is_there = is_there and 0 <= slot < conv_states.shape[0]
        if not is_there or not x_part.shape[-1]:
            continue
        before = x_part.new_zeros(x_part.shape[0], history, dtype=torch.float64)
        if conv_states is not None and has_initial_state is not None and has_initial_state[n]:
            before = conv_states[slot, :, :history].double()
        tokens = torch.cat([before, x_part.double()], -1)
        out_part.copy_(_filter(tokens, weight, bias, activation))
        if conv_states is not None:
            conv_states[slot, :, :history] = tokens[:, tokens.shape[1] - history :].to(conv_states)
    return out


def update_by_reference(
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
    """Answer as ``causal_conv1d_update`` does, rounded to the dtypes of x and of the states."""
    history = weight.shape[1] - 1
    columns = conv_state.shape[2]
    out = torch.zeros_like(x)
    channels_first = (out.t(), x.t()) if query_start_loc is not None else (out, x)
    if query_start_loc is None and x.ndim == 2:
        channels_first = (out[..., None], x[..., None])
    for n, (x_part, out_part) in enumerate(
        _sequences(channels_first[1], channels_first[0], query_start_loc)
    ):
        slot = n if conv_state_indices is None else int(conv_state_indices[n])
        is_pad = conv_state_indices is not None and slot == pad_slot_id
        if not x_part.shape[-1] or is_pad or not 0 <= slot < conv_state.shape[0]:
            continue
        first = 0
        if num_accepted_tokens is not None:
            first = min(max(int(num_accepted_tokens[n]), 1), columns - history + 1) - 1
        before = conv_state[slot, :, first : first + history].double()
        tokens = torch.cat([before, x_part.double()], -1)
        out_part.copy_(_filter(tokens, weight, bias, activation))
        kept = tokens[:, 1:] if num_accepted_tokens is not None else tokens[:, -history:]
        kept = kept[:, :columns]
        conv_state[slot, :, : kept.shape[1]] = kept.to(conv_state)
    return out


def rms_norm_gated_by_reference(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "sigmoid",
) -> torch.Tensor:
    """Answer as ``rms_norm_gated`` does, rounded to the dtype of x."""
    wide = x.double()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()
    if bias is not None:
        y = y + bias.double()
    g = gate.double()
    factor = torch.sigmoid(g)
    return (y * (factor if activation == "sigmoid" else g * factor)).to(x.dtype).contiguous()


def _sequences(
    x: torch.Tensor, out: torch.Tensor, query_start_loc: torch.Tensor | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Sequences ``[dim, tokens]`` of both tensors."""
    if query_start_loc is None:
        return [(x, out)] if x.ndim == 2 else list(zip(x, out, strict=True))
    spans = pairwise(query_start_loc.tolist())
    return [(x[:, first:last], out[:, first:last]) for first, last in spans]


def _filter(
    tokens: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | bool | None,
) -> torch.Tensor:
    """Filter tokens ``[dim, WIDTH - 1 + L]`` that start with their history."""
    width = weight.shape[1]
    y = (tokens.unfold(-1, width, 1) * weight.double()[:, None]).sum(-1)
    if bias is not None:
        y = y + bias.double()[:, None]
    return torch.nn.functional.silu(y) if activation else y
