"""Calls of vLLM's KDA layers from 0.27 on: prefill and decode get raw gates and a raw beta.

Sequences are packed as ``[1, T, H, K]``, states are ``[slots, HV, V, K]``, in which slot 0 stands
for padding.
"""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.recurrent import recurrent_kda
from fa_triton.vllm.kda.operands import (
    FIRST_SLOT,
    chunk_with_gate,
    delivered,
    first_entries,
    gate_operand,
    unpacked_qkv,
)


def chunk_kda_with_raw_beta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    g_bias: torch.Tensor | None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    lower_bound: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Prefill with raw gates and raw step sizes; else as :func:`chunk_kda_with_activated_beta`.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        raw_g: Gates before their activation.
        raw_beta: Step sizes ``[B, T, HV]`` before their sigmoid.
        A_log: Logarithms of the gate's rate.
        g_bias: Bias on the gate.
        scale: Factor on the result.
        initial_state: States of the sequences.
        output_final_state: Whether the final states are wanted.
        lower_bound: Least decay; None is the softplus gate without a bound.
        use_qk_l2norm_in_kernel: Whether rows of q and k are normalised.
        cu_seqlens: Starts of the sequences.
        out: Memory of the result.

    Returns:
        As :func:`chunk_kda`. Source: ``chunk_kda_with_fused_gate`` of vLLM from 0.27 on.
    """
    return chunk_with_gate(
        (q, k, v, raw_g, raw_beta),
        (A_log, g_bias, lower_bound),
        (initial_state, output_final_state),
        out,
        scale=scale,
        cu_seqlens=cu_seqlens,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=True,
    )


def fused_recurrent_kda_with_raw_gate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    fuse_gate: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode with raw gates and raw step sizes.

    Args:
        q: Queries ``[1, T, H, K]``.
        k: Keys.
        v: Values.
        raw_g: Gates ``[1, T, HV, K]`` before their activation.
        raw_beta: Step sizes ``[1, T, HV]`` before their sigmoid.
        A_log: Logarithms of the gate's rate, HV elements.
        dt_bias: Bias on the gate, HV * K elements.
        lower_bound: Least decay; None is the softplus gate without a bound.
        initial_state: Pool of states ``[slots, HV, V, K]``, updated in place.
        cu_seqlens: Starts of the sequences ``[N + 1]``.
        ssm_state_indices: Slots ``[N]`` or ``[N, steps]``; may be longer.
        num_accepted_tokens: Accepted tokens of the step before ``[N]``.
        out: Memory of the result, None for new memory.
        fuse_gate: Not used: the gate is always activated in the kernel.

    Returns:
        The result ``[1, T, HV, V]`` and the pool.

    Notes:
        Mutates the pool and ``out``. Host sync: none. Source: ``fused_recurrent_kda`` of vLLM's
        Kimi K3 operators, from 0.27 on.
    """
    del fuse_gate
    count = cu_seqlens.shape[0] - 1
    result, _ = recurrent_kda(
        q,
        k,
        v,
        gate_operand(raw_g),
        gate_operand(raw_beta),
        initial_state,
        cu_seqlens,
        first_entries(ssm_state_indices, count),
        A_log.reshape(-1),
        dt_bias,
        first_entries(num_accepted_tokens, count),
        use_beta_sigmoid_in_kernel=True,
        safe_gate=lower_bound is not None,
        lower_bound=lower_bound,
        skip_index_below=FIRST_SLOT,
    )
    return delivered(result, out), initial_state


def fused_recurrent_kda_packed_decode(
    mixed_qkv: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: float | None,
    initial_state: torch.Tensor,
    state_indices: torch.Tensor,
    scale: float | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode one token of each sequence, q, k and v side by side as the convolution leaves them.

    Args:
        mixed_qkv: ``[N, 2 H K + H V]``, read where it lies.
        raw_g: Gates ``[1, N, H, K]`` before their activation.
        raw_beta: Step sizes ``[1, N, H]`` before their sigmoid.
        A_log: Logarithms of the gate's rate, H elements.
        dt_bias: Bias on the gate, H * K elements.
        lower_bound: Least decay; None is the softplus gate without a bound.
        initial_state: Pool of states ``[slots, H, V, K]``, updated in place.
        state_indices: Slots ``[N]``.
        scale: Factor on the result, None for ``K ** -0.5``.
        out: Memory of the result, None for new memory.

    Returns:
        The result ``[1, N, H, V]`` and the pool.

    Notes:
        Mutates the pool and ``out``. Host sync: none. Source: function of the same name of vLLM's
        Kimi K3 operators, from 0.27 on.
    """
    q, k, v = unpacked_qkv(mixed_qkv, initial_state)
    result, _ = recurrent_kda(
        q,
        k,
        v,
        gate_operand(raw_g).transpose(0, 1),
        gate_operand(raw_beta).transpose(0, 1),
        initial_state,
        ssm_state_indices=state_indices,
        A_log=A_log.reshape(-1),
        dt_bias=dt_bias,
        scale=scale,
        use_beta_sigmoid_in_kernel=True,
        safe_gate=lower_bound is not None,
        lower_bound=lower_bound,
        skip_index_below=FIRST_SLOT,
    )
    return delivered(result.transpose(0, 1), out), initial_state
