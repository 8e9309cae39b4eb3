"""Tensors of vLLM's KDA calls as our operators read them."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.kda import chunk_kda

# Slots below are no request's: vLLM keeps block 0 for padding.
FIRST_SLOT = 1
GATE_DTYPES = (torch.float32, torch.bfloat16)


def gathered_states(
    state: torch.Tensor, indices: torch.Tensor, has_initial_state: torch.Tensor
) -> torch.Tensor:
    """States of sequences, zero for those that start anew, in plain torch.

    Args:
        state: Pool ``[slots, ...]``.
        indices: Slots ``[N]``.
        has_initial_state: Whether each sequence has a state ``[N]``, bool.

    Returns:
        ``[N, ...]``, dense. Whatever unused slots hold, NaN included, is not read into it.
        Source: ``gather_initial_states`` of vLLM, whose kernel wants CUDA or XPU.
    """
    slots = torch.where(has_initial_state, indices, 0)
    mask = has_initial_state.reshape(-1, *[1] * (state.ndim - 1))
    return torch.where(mask, state.index_select(0, slots), 0)


def unpacked_qkv(
    mixed_qkv: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views ``[N, 1, H, K]``, ``[N, 1, H, K]``, ``[N, 1, H, V]`` of packed rows."""
    heads, value_dim, key_dim = state.shape[1:]
    q, k, v = mixed_qkv.split((heads * key_dim, heads * key_dim, heads * value_dim), dim=-1)
    return (
        q.unflatten(-1, (heads, key_dim)).unsqueeze(1),
        k.unflatten(-1, (heads, key_dim)).unsqueeze(1),
        v.unflatten(-1, (heads, value_dim)).unsqueeze(1),
    )


def chunk_with_gate(
    rows: tuple[torch.Tensor, ...],
    gate: tuple[torch.Tensor, torch.Tensor | None, float | None],
    states: tuple[torch.Tensor | None, bool],
    out: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Prefill with raw gates.

    Args:
        rows: q, k, v, raw gates and step sizes.
        gate: Logarithms of the gate's rate, its bias and its bound.
        states: Initial states, and whether the final ones are wanted.
        out: Memory of the result, None for new memory.
        **options: Of ``fa_triton.chunk_kda``.
    """
    q, k, v, raw_g, beta = rows
    a_log, bias, lower_bound = gate
    initial_state, wants_final = states
    result, final = chunk_kda(
        q,
        k,
        v,
        gate_operand(raw_g),
        gate_operand(beta),
        initial_state=float32_states(initial_state),
        output_final_state=wants_final,
        safe_gate=lower_bound is not None,
        lower_bound=lower_bound,
        use_gate_in_kernel=True,
        A_log=a_log.reshape(-1),
        dt_bias=bias,
        state_v_first=True,
        **options,
    )
    return delivered(result, out), final


def gate_operand(x: torch.Tensor) -> torch.Tensor:
    """Gates and step sizes as the kernels read them; float16 ones are copied."""
    return x if x.dtype in GATE_DTYPES else x.float()


def float32_states(state: torch.Tensor | None) -> torch.Tensor | None:
    """States in the dtype that recurrences run in."""
    return None if state is None else state.float()


def first_entries(indices: torch.Tensor | None, count: int) -> torch.Tensor | None:
    """Entries of the sequences; buffers of a graph are longer."""
    return None if indices is None else indices[:count]


def delivered(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The result where the caller wants it."""
    return result if out is None else out.copy_(result)
