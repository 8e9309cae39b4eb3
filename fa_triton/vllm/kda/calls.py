"""What vLLM's Kimi-Linear layers call, on ``chunk_kda`` and ``recurrent_kda``.

Two generations of arguments: up to 0.26 beta arrives activated and decode gets activated gates;
from 0.27 on prefill and decode get raw gates and a raw beta. Both pack sequences as
``[1, T, H, K]`` and keep states as ``[slots, HV, V, K]``, in which slot 0 stands for padding.
"""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.kda import chunk_kda as chunk_over_sequences
from fa_triton.recurrent import recurrent_kda

# Slots below are no request's: vLLM keeps block 0 for padding.
FIRST_SLOT = 1
GATE_DTYPES = (torch.float32, torch.bfloat16)


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
        _gate(g),
        _gate(beta),
        scale,
        initial_state=_float32(initial_state),
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        state_v_first=True,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )
    return _delivered(result, out), final


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
    return _chunk_with_gate(
        (q, k, v, raw_g, beta),
        (A_log, g_bias, lower_bound),
        (initial_state, output_final_state),
        None,
        scale=scale,
        cu_seqlens=cu_seqlens,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
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
    return _chunk_with_gate(
        (q, k, v, raw_g, raw_beta),
        (A_log, g_bias, lower_bound),
        (initial_state, output_final_state),
        out,
        scale=scale,
        cu_seqlens=cu_seqlens,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=True,
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
        _gate(g),
        _gate(beta),
        _given("initial_state", initial_state),
        cu_seqlens,
        _first(ssm_state_indices, count),
        num_accepted_tokens=_first(num_accepted_tokens, count),
        scale=scale,
        output_final_state=True,
        inplace_final_state=inplace_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=False,
        skip_index_below=FIRST_SLOT,
    )
    return result, _given("final_state", final)


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
        _gate(raw_g),
        _gate(raw_beta),
        initial_state,
        cu_seqlens,
        _first(ssm_state_indices, count),
        A_log.reshape(-1),
        dt_bias,
        _first(num_accepted_tokens, count),
        use_beta_sigmoid_in_kernel=True,
        safe_gate=lower_bound is not None,
        lower_bound=lower_bound,
        skip_index_below=FIRST_SLOT,
    )
    return _delivered(result, out), initial_state


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
        _gate(raw_g).transpose(0, 1),
        _gate(raw_beta).transpose(0, 1),
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
    return _delivered(result.transpose(0, 1), out), initial_state


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


def _chunk_with_gate(
    rows: tuple[torch.Tensor, ...],
    gate: tuple[torch.Tensor, torch.Tensor | None, float | None],
    states: tuple[torch.Tensor | None, bool],
    out: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    q, k, v, raw_g, beta = rows
    a_log, bias, lower_bound = gate
    initial_state, wants_final = states
    result, final = chunk_over_sequences(
        q,
        k,
        v,
        _gate(raw_g),
        _gate(beta),
        initial_state=_float32(initial_state),
        output_final_state=wants_final,
        safe_gate=lower_bound is not None,
        lower_bound=lower_bound,
        use_gate_in_kernel=True,
        A_log=a_log.reshape(-1),
        dt_bias=bias,
        state_v_first=True,
        **options,
    )
    return _delivered(result, out), final


def _gate(x: torch.Tensor) -> torch.Tensor:
    """Gates and step sizes as the kernels read them; float16 ones are copied."""
    return x if x.dtype in GATE_DTYPES else x.float()


def _float32(state: torch.Tensor | None) -> torch.Tensor | None:
    return None if state is None else state.float()


def _first(indices: torch.Tensor | None, count: int) -> torch.Tensor | None:
    """Entries of the sequences; buffers of a graph are longer."""
    return None if indices is None else indices[:count]


def _delivered(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return result if out is None else out.copy_(result)


def _given(name: str, tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None:
        raise ValueError(f"`{name}` must be a tensor of states, got None")
    return tensor
