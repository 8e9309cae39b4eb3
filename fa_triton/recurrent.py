"""``recurrent_kda``: what it takes, returns and promises."""

from __future__ import annotations

import torch

from fa_triton.delta_rule.recurrent import advance, advance_in_place
from fa_triton.delta_rule.recurrent_problem import RecurrentOptions
from fa_triton.ops.routing import KDA, goes_through_dispatcher
from fa_triton.validation.scalars import as_flag


def recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_gate: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    *,
    layout: str = "BSND",
    scale: float | None = None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    state_v_first: bool = True,
    use_qk_l2norm_in_kernel: bool = True,
    use_gate_in_kernel: bool = True,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    skip_index_below: int = 0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Kimi Delta Attention token by token: decode steps over a pool of states.

    H heads of q and k, HV value heads (value head h reads query head ``h // (HV / H)``), N
    sequences. Without ``cu_seqlens`` every batch entry is a sequence of T tokens.

    Args:
        q: Queries, fp16 or bf16, last axis dense: BSND ``[B, T, H, K]``, BNSD
            ``[B, H, T, K]``, TND ``[T, H, K]`` or NTD ``[H, T, K]``; K and V are multiples of 16
            up to 256, all strides but the last are free.
        k: Keys, shape and dtype of q.
        v: Values ``[.., HV, V]``, dtype of q.
        raw_gate: Gate ``[.., HV, K]``, fp32 or bf16: before its activation, or natural-log decays
            of at most 0 without ``use_gate_in_kernel``.
        beta: Step sizes ``[.., HV]``, fp32 or bf16.
        state: States, fp32, bf16 or fp16, last axis dense, other strides free: ``[slots, HV, V,
            K]``, or ``[slots, HV, K, V]`` with ``state_v_first=False``; one per sequence without
            ``ssm_state_indices``.
        cu_seqlens: Starts of packed sequences ``[N + 1]``, int32 or int64; needs B = 1. Tokens past
            the last start are padding.
        ssm_state_indices: Slot of each sequence ``[N]``, int32 or int64, any stride; or a slot per
            step ``[N, steps]``: the state after token t of a sequence goes to that of column t.
        A_log: Logarithm of the gate's factor, fp32, HV elements; needed by the gate.
        dt_bias: Bias of the gate, fp32, HV * K elements.
        num_accepted_tokens: Accepted tokens of the step before ``[N]``, int32 or int64: a sequence
            starts from the state of that column, counted from 1. Needs slots per step.
        layout: Layout of q, k, v, raw_gate and beta.
        scale: Factor of the result, None for ``K ** -0.5``.
        output_final_state: Whether the new states are returned.
        inplace_final_state: Whether ``state`` takes them; else new memory, one per sequence.
        state_v_first: Whether the rows of a state are channels of V.
        use_qk_l2norm_in_kernel: Whether q and k are divided by their norms first.
        use_gate_in_kernel: Whether the gate is activated here: ``-exp(A_log) softplus(x)`` of
            ``x = raw_gate + dt_bias``, or with ``safe_gate`` ``lower_bound sigmoid(exp(A_log) x)``.
        use_beta_sigmoid_in_kernel: Whether beta is the sigmoid of what is given.
        allow_neg_eigval: Whether that sigmoid is doubled.
        safe_gate: Whether the gate is the bounded one.
        lower_bound: Least log decay of the bounded gate, in [-5, 0), None for -5.
        skip_index_below: A sequence whose first slot lies below is skipped, a step whose slot does
            is not stored. 1 keeps slot 0 as a dummy, as vllm-ascend does. Without
            ``ssm_state_indices`` it says nothing.

    Returns:
        ``out`` in q's dtype, token-major: ``[B, T, HV, V]``, or ``[T, HV, V]`` for TND and NTD.
        Rows of padding and of skipped sequences are 0. ``final_state``: None unless asked for;
        ``state`` itself if that was updated; else ``[N, ..]`` in its dtype, the initial state for
        an empty sequence and 0 for a skipped one.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.

    Notes:
        Mutates ``state`` unless ``inplace_final_state=False``; slots that no sequence names, and
        those of empty and skipped sequences, keep their bits. Arithmetic and the running state are
        fp32; a state is rounded when it is stored. No host sync: index tensors are read by the
        kernel, an index past the pool counts as skipped. ``FA_TRITON_CHECK_VALUES=1`` checks them,
        with a sync. Bitwise reproducible, whatever else is in the batch.
        Source: vllm-ascend ``recurrent_kda``.
    """
    options: RecurrentOptions = {
        "cu_seqlens": cu_seqlens,
        "ssm_state_indices": ssm_state_indices,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "num_accepted_tokens": num_accepted_tokens,
        "layout": layout,
        "scale": scale,
        "state_v_first": state_v_first,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_gate_in_kernel": use_gate_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
        "safe_gate": safe_gate,
        "lower_bound": lower_bound,
        "skip_index_below": skip_index_below,
    }
    rows = (q, k, v, raw_gate, beta, state)
    wants_final = as_flag("output_final_state", output_final_state)
    is_traced = goes_through_dispatcher(
        *rows, cu_seqlens, ssm_state_indices, A_log, dt_bias, num_accepted_tokens, subject=KDA
    )
    if as_flag("inplace_final_state", inplace_final_state):
        step = torch.ops.fa_triton.recurrent_kda_ if is_traced else advance_in_place
        return step(*rows, **options), state if wants_final else None
    step = torch.ops.fa_triton.recurrent_kda if is_traced else advance
    out, final_state = step(*rows, **options, output_final_state=wants_final)
    return out, final_state if wants_final else None
