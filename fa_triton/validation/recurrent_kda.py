"""The contract of ``recurrent_kda``: arguments in, frozen problem out."""

from __future__ import annotations

import torch

from fa_triton.delta_rule.recurrent_problem import RecurrentProblem
from fa_triton.validation.delta_rule import (
    DeltaRuleSizes,
    check_beta_options,
    check_delta_rule_inputs,
    check_gate_options,
    check_layout,
    check_scale,
)
from fa_triton.validation.scalars import MAX_INT32, as_flag, as_int
from fa_triton.validation.tensors import (
    FLOAT_DTYPES,
    check_dense_last_axis,
    check_device,
    check_index_tensor,
    check_is_tensor,
    check_reach,
    refuse_gradient,
)


def validate_recurrent_kda(
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
) -> RecurrentProblem:
    """Check every argument of ``recurrent_kda``, described there, without reading a device.

    Returns:
        The problem: sizes and options, no tensors.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.
    """
    layout = check_layout(layout)
    sizes = check_delta_rule_inputs(q, k, v, raw_gate, beta, layout, gate_name="raw_gate")
    gate = check_gate_options(
        use_gate_in_kernel=use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        A_log=A_log,
        dt_bias=dt_bias,
        num_v_heads=sizes.num_v_heads,
        key_dim=sizes.key_dim,
        device=sizes.device,
    )
    has_sigmoid, beta_scale = check_beta_options(use_beta_sigmoid_in_kernel, allow_neg_eigval)
    num_sequences = _count_sequences(sizes, cu_seqlens)
    num_steps = _check_indices(ssm_state_indices, num_accepted_tokens, num_sequences, sizes.device)
    v_first = as_flag("state_v_first", state_v_first)
    num_slots = _check_state(state, sizes, v_first, num_sequences, has_indices=num_steps > 0)
    in_place = as_flag("inplace_final_state", inplace_final_state)
    has_columns = ssm_state_indices is not None and ssm_state_indices.ndim == 2
    skip = as_int("skip_index_below", skip_index_below, minimum=0, maximum=MAX_INT32)
    return RecurrentProblem(
        layout=layout,
        sizes=sizes,
        gate=gate,
        has_beta_sigmoid=has_sigmoid,
        beta_scale=beta_scale,
        num_sequences=num_sequences,
        num_slots=num_slots,
        state_dtype=state.dtype,
        state_v_first=v_first,
        scale=check_scale(scale, sizes.key_dim),
        has_l2norm=as_flag("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel),
        has_cu_seqlens=cu_seqlens is not None,
        num_steps=num_steps,
        has_step_slots=in_place and has_columns,
        has_accepted=num_accepted_tokens is not None,
        # numbers of sequences are no slots that could be dummies
        skip_index_below=skip if num_steps else 0,
        in_place=in_place,
        wants_final_state=as_flag("output_final_state", output_final_state),
    )


def _count_sequences(sizes: DeltaRuleSizes, cu_seqlens: object) -> int:
    """N: what ``cu_seqlens`` separates, else the batch entries."""
    if cu_seqlens is None:
        return sizes.batch_size
    tensor = check_index_tensor(
        "cu_seqlens", cu_seqlens, shape=(None,), device=sizes.device, meaning="(N + 1,)"
    )
    if tensor.shape[0] < 2:
        raise ValueError(f"`cu_seqlens` must have shape (N + 1,), N >= 1, got {(tensor.shape[0],)}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"`cu_seqlens` must be contiguous, got strides {tuple(tensor.stride())}; "
            "call cu_seqlens.contiguous()"
        )
    if sizes.batch_size != 1:
        raise ValueError(
            f"`q` must have one batch entry with cu_seqlens, got {sizes.batch_size}; pack the "
            "sequences along the token axis"
        )
    return tensor.shape[0] - 1


def _check_indices(
    indices: object, num_accepted_tokens: object, num_sequences: int, device: torch.device
) -> int:
    """Check which slot belongs to which sequence; return the columns of the indices, 0 if none."""
    if indices is None:
        if num_accepted_tokens is not None:
            raise ValueError(
                "`num_accepted_tokens` must be None without ssm_state_indices, got a tensor"
            )
        return 0
    tensor = check_is_tensor("ssm_state_indices", indices)
    columns = tensor.shape[1] if tensor.ndim == 2 else None
    check_index_tensor(
        "ssm_state_indices",
        indices,
        shape=(num_sequences,) if columns is None else (num_sequences, None),
        device=device,
        meaning=f"({num_sequences},) or ({num_sequences}, steps), one row per sequence",
    )
    if columns is not None:
        check_dense_last_axis("ssm_state_indices", tensor)
    if num_accepted_tokens is not None:
        if columns is None:
            raise ValueError(
                f"`ssm_state_indices` must have shape ({num_sequences}, steps) with "
                f"num_accepted_tokens, got {tuple(tensor.shape)}"
            )
        accepted = check_index_tensor(
            "num_accepted_tokens",
            num_accepted_tokens,
            shape=(num_sequences,),
            device=device,
            meaning=f"({num_sequences},)",
        )
        if not accepted.is_contiguous():
            raise ValueError(
                f"`num_accepted_tokens` must be contiguous, got strides {accepted.stride()}; "
                "call num_accepted_tokens.contiguous()"
            )
    return 1 if columns is None else columns


def _check_state(
    state: object, sizes: DeltaRuleSizes, v_first: bool, num_sequences: int, *, has_indices: bool
) -> int:
    """Check the pool of states; return how many it holds."""
    tensor = check_is_tensor("state", state)
    if tensor.dtype not in FLOAT_DTYPES:
        raise TypeError(f"`state` must have dtype float32, bfloat16, float16, got {tensor.dtype}")
    refuse_gradient("state", tensor)
    check_device("state", tensor, sizes.device)
    dims = (sizes.value_dim, sizes.key_dim) if v_first else (sizes.key_dim, sizes.value_dim)
    wanted = (sizes.num_v_heads, *dims)
    got = tuple(tensor.shape)
    if len(got) != 4 or got[1:] != wanted or got[0] < 1:
        slots = "slots" if has_indices else str(num_sequences)
        order = "V before K" if v_first else "K before V"
        raise ValueError(
            f"`state` must have shape ({slots}, {', '.join(map(str, wanted))}), {order} with "
            f"state_v_first={v_first}, got {got}"
        )
    if not has_indices and got[0] != num_sequences:
        raise ValueError(
            f"`state` must hold {num_sequences} states, one per sequence, without "
            f"ssm_state_indices, got {got[0]}"
        )
    check_dense_last_axis("state", tensor)
    check_reach("state", tensor.stride(2), got[2])
    for axis, name in ((0, "slots"), (1, "heads"), (2, "rows")):
        if tensor.stride(axis) < 1 and tensor.shape[axis] > 1:
            raise ValueError(
                f"`state` must keep its {name} apart, got strides {tuple(tensor.stride())}"
            )
    return got[0]
