"""Calls of vLLM's first KDA layers, up to 0.26: beta arrives activated, decode gets decays.

Sequences are packed as ``[1, T, H, K]``, states are ``[slots, HV, V, K]``, in which slot 0 stands
for padding.
"""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.kda import chunk_kda as chunk_over_sequences
from fa_triton.recurrent import recurrent_kda
from fa_triton.vllm.kda.operands import (
    FIRST_SLOT,
    chunk_with_gate,
    delivered,
    first_entries,
    float32_states,
    gate_operand,
)


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Prefill with activated gates.

    Args:
        q: Queries ``[B, T, H, K]``, fp16 or bf16; B is 1 with ``cu_seqlens``.
        k: Keys, shape of q.
        v: Values ``[B, T, HV, V]``.
        g: Natural-log decays ``[B, T, HV, K]``.
        beta: Step sizes ``[B, T, HV]``.
        scale: Factor on the result, None for ``K ** -0.5``.
        initial_state: States ``[N, HV, V, K]`` of the sequences, None for zeros. Not changed.
        output_final_state: Whether the states after the sequences are wanted.
        use_qk_l2norm_in_kernel: Whether rows of q and k are normalised.
        cu_seqlens: Starts of the sequences ``[N + 1]``.
        out: Memory of the result, None for new memory.

    Returns:
        The result ``[B, T, HV, V]`` in dtype of q; the final states fp32, or None.

    Raises:
        ValueError, TypeError: Tensors that ``fa_triton.chunk_kda`` refuses.

    Notes:
        Host sync as ``fa_triton.chunk_kda``: ``cu_seqlens`` is copied once per tensor. Mutates
        ``out``. Other arguments are ignored, as vLLM's function does. Source: ``chunk_kda`` of
        vLLM.
    """
    result, final = chunk_over_sequences(
        q,
        k,
        v,
        gate_operand(g),
        gate_operand(beta),
        scale,
        initial_state=float32_states(initial_state),
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=True,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )
    return delivered(result, out), final


def chunk_kda_with_activated_beta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor,
    g_bias: torch.Tensor | None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    lower_bound: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Prefill with raw gates and activated step sizes; else as :func:`chunk_kda`.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        raw_g: Gates ``[B, T, HV, K]`` before their activation.
        beta: Step sizes ``[B, T, HV]``.
        A_log: Logarithms of the gate's rate, HV elements.
        g_bias: Bias on the gate, HV * K elements.
        scale: Factor on the result.
        initial_state: States of the sequences.
        output_final_state: Whether the final states are wanted.
        lower_bound: Least decay; None is the softplus gate without a bound.
        use_qk_l2norm_in_kernel: Whether rows of q and k are normalised.
        cu_seqlens: Starts of the sequences.

    Returns:
        As :func:`chunk_kda`. Source: ``chunk_kda_with_fused_gate`` of vLLM up to 0.26.
    """
    return chunk_with_gate(
        (q, k, v, raw_g, beta),
        (A_log, g_bias, lower_bound),
        (initial_state, output_final_state),
        None,
        scale=scale,
        cu_seqlens=cu_seqlens,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )


def fused_recurrent_kda_with_activated_gate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    inplace_final_state: bool = True,
    use_qk_l2norm_in_kernel: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode with activated gates and step sizes.

    Args:
        q: Queries ``[1, T, H, K]``, fp16 or bf16, last axis dense.
        k: Keys, shape of q.
        v: Values ``[1, T, HV, V]``.
        g: Natural-log decays ``[1, T, HV, K]``.
        beta: Step sizes ``[1, T, HV]``.
        scale: Factor on the result, None for ``K ** -0.5``.
        initial_state: Pool of states ``[slots, HV, V, K]``.
        inplace_final_state: Whether the pool takes the new states.
        use_qk_l2norm_in_kernel: Whether rows of q and k are normalised.
        cu_seqlens: Starts of the sequences ``[N + 1]``.
        ssm_state_indices: Slots ``[N]``, or ``[N, steps]`` for speculative tokens; may be longer.
        num_accepted_tokens: Accepted tokens of the step before ``[N]``.

    Returns:
        The result ``[1, T, HV, V]``; the pool, or new states ``[N, HV, V, K]``.

    Raises:
        ValueError, TypeError: Tensors that ``fa_triton.recurrent_kda`` refuses.

    Notes:
        Mutates the pool in place. Host sync: none. Source: ``fused_recurrent_kda`` of
        ``flash_linear_attention`` in vLLM.
    """
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    result, final = recurrent_kda(
        q,
        k,
        v,
        gate_operand(g),
        gate_operand(beta),
        _given("initial_state", initial_state),
        cu_seqlens,
        first_entries(ssm_state_indices, count),
        num_accepted_tokens=first_entries(num_accepted_tokens, count),
        scale=scale,
        output_final_state=True,
        inplace_final_state=inplace_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=False,
        skip_index_below=FIRST_SLOT,
    )
    return result, _given("final_state", final)


def fused_kda_gate(
    g: torch.Tensor,
    A: torch.Tensor,
    head_k_dim: int,
    g_bias: torch.Tensor | None = None,
    beta: float = 1.0,
    threshold: float = 20.0,
    lower_bound: float | None = None,
) -> torch.Tensor:
    """Activate gates, in plain torch: decode up to vLLM 0.26 does so before the recurrence.

    Args:
        g: Gates ``[..., H * K]``.
        A: Logarithms of the gate's rate, H elements.
        head_k_dim: K.
        g_bias: Bias, H * K elements.
        beta: Sharpness of the softplus.
        threshold: Where the softplus becomes the identity, times ``beta``.
        lower_bound: Least decay; None is the softplus gate.

    Returns:
        Natural-log decays ``[..., H, K]``, fp32. Source: function of the same name of vLLM.
    """
    x = g.float() if g_bias is None else g.float() + g_bias.float()
    x = x.unflatten(-1, (-1, head_k_dim))
    rate = A.float().reshape(-1, 1).exp()
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(rate * x)
    return -rate * torch.nn.functional.softplus(x, beta, threshold)


def _given(name: str, tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None:
        raise ValueError(f"`{name}` must be a tensor of states, got None")
    return tensor
