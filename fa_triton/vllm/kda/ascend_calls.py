"""The two KDA calls of vllm-ascend's layers, in the place of its compiled operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fa_triton.kda import chunk_kda
from fa_triton.recurrent import recurrent_kda
from fa_triton.vllm.kda.operands import FIRST_SLOT

KDA_CHUNK_SIZE = 64
DEFAULT_LOWER_BOUND = -5.0


def run_chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_gate: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor | Sequence[int],
    chunk_indices: torch.Tensor | Sequence[int] | None,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    lower_bound: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefill: BSND, chunks of 64 tokens, states V first, raw gates, activated beta.

    Args:
        q: Queries ``[1, T, H, K]``, fp16 or bf16, read where they lie.
        k: Keys, shape of q; rows of q and k are normalised in the kernels.
        v: Values ``[1, T, HV, V]``.
        raw_gate: Gates ``[1, T, HV, K]`` before their activation, fp32 or bf16.
        beta: Step sizes ``[1, T, HV]`` after their sigmoid, fp32 or bf16.
        initial_state: States ``[N, HV, V, K]``, fp32. Not changed.
        cu_seqlens: Starts of the sequences ``[N + 1]``, on the host (no copy) or the device.
        chunk_indices: Pairs (sequence, chunk) that ``cu_seqlens`` implies; None to make them.
        a_log: Logarithms of the gate's rate, HV elements.
        dt_bias: Bias on the gate, HV * K elements.
        lower_bound: Least decay of the bounded gate, in [-5, 0); None is the softplus gate.

    Returns:
        The result ``[1, T, HV, V]`` and the final states ``[N, HV, V, K]`` fp32.

    Raises:
        ValueError, TypeError: Tensors that ``fa_triton.chunk_kda`` refuses.

    Notes:
        q and k are not rounded after their normalisation, as they are there. Nothing is mutated.
        Source: ``run_chunk_kda`` of vllm-ascend's ``ops/kda.py``.
    """
    output, final_state = chunk_kda(
        q,
        k,
        v,
        raw_gate,
        beta,
        chunk_size=KDA_CHUNK_SIZE,
        layout="BSND",
        initial_state=initial_state.float(),
        output_final_state=True,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        safe_gate=lower_bound is not None,
        lower_bound=DEFAULT_LOWER_BOUND if lower_bound is None else lower_bound,
        use_gate_in_kernel=True,
        A_log=a_log.reshape(-1),
        dt_bias=dt_bias,
        state_v_first=True,
        use_qk_l2norm_in_kernel=True,
    )
    if final_state is None:
        raise RuntimeError("`chunk_kda` must return the final states it was asked for, got None")
    return output, final_state


def run_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_gate: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state_indices: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    lower_bound: float | None,
    beta_is_preprocessed: bool = True,
    num_accepted_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode and speculative decode over the pool of states.

    Args:
        q: Queries ``[1, T, H, K]``, fp16 or bf16.
        k: Keys, shape of q.
        v: Values ``[1, T, HV, V]``.
        raw_gate: Gates ``[1, T, HV, K]`` before their activation, fp32 or bf16.
        beta: Step sizes ``[1, T, HV]``, fp32 or bf16.
        state: Pool ``[slots, HV, V, K]``, updated in place.
        cu_seqlens: Starts of the sequences ``[N + 1]``, on the device.
        state_indices: Slots ``[N]`` or ``[N, steps]``; may be longer. Slot 0 stands for padding.
        a_log: Logarithms of the gate's rate, HV elements.
        dt_bias: Bias on the gate, HV * K elements.
        lower_bound: Least decay of the bounded gate; None is the softplus gate.
        beta_is_preprocessed: Whether beta has passed its sigmoid.
        num_accepted_tokens: Accepted tokens of the step before ``[N]``.

    Returns:
        The result ``[1, T, HV, V]``.

    Notes:
        Host sync: none. Source: ``run_recurrent_kda`` of vllm-ascend's ``ops/kda.py``.
    """
    count = cu_seqlens.shape[0] - 1
    output, _ = recurrent_kda(
        q,
        k,
        v,
        raw_gate,
        beta,
        state,
        cu_seqlens,
        state_indices[:count],
        a_log.reshape(-1),
        dt_bias,
        None if num_accepted_tokens is None else num_accepted_tokens[:count],
        use_beta_sigmoid_in_kernel=not beta_is_preprocessed,
        safe_gate=lower_bound is not None,
        lower_bound=DEFAULT_LOWER_BOUND if lower_bound is None else lower_bound,
        skip_index_below=FIRST_SLOT,
    )
    return output
