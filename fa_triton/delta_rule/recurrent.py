"""A call of ``recurrent_kda``: validate, describe, launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa_triton.delta_rule.layouts import kda_strides
from fa_triton.delta_rule.recurrent_values import check_recurrent_values
from fa_triton.delta_rule.recurrent_variants import recurrent_form, v_tile
from fa_triton.device import cpu_mode, device_info
from fa_triton.launch import runner
from fa_triton.validation import check_has_memory, value_checks_enabled
from fa_triton.validation.recurrent_kda import validate_recurrent_kda

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.delta_rule.recurrent_problem import RecurrentOptions, RecurrentProblem


def advance_in_place(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_gate: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    **options: Unpack[RecurrentOptions],
) -> torch.Tensor:
    """Return the result of ``recurrent_kda``; ``state`` takes the new states."""
    rows = (q, k, v, raw_gate, beta)
    problem = validate_recurrent_kda(*rows, state, **options)
    return _run(rows, state, state, problem, options)


def advance(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_gate: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *,
    output_final_state: bool = False,
    **options: Unpack[RecurrentOptions],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of ``recurrent_kda`` and new states, an empty tensor if not wanted."""
    rows = (q, k, v, raw_gate, beta)
    problem = validate_recurrent_kda(
        *rows,
        state,
        output_final_state=output_final_state,
        inplace_final_state=False,
        **options,
    )
    # a skipped sequence leaves its state 0
    final = state.new_zeros(problem.final_shape if problem.wants_final_state else (0,))
    out = _run(rows, state, final if problem.wants_final_state else None, problem, options)
    return out, final


def _run(
    rows: tuple[torch.Tensor, ...],
    state: torch.Tensor,
    final: torch.Tensor | None,
    problem: RecurrentProblem,
    options: RecurrentOptions,
) -> torch.Tensor:
    q = rows[0]
    if value_checks_enabled():
        check_recurrent_values(problem, options)
    if q.device.type == "cpu" and cpu_mode() == "reference":
        from fa_triton.delta_rule.recurrent_reference import advance_by_reference

        return advance_by_reference(rows, state, final, problem, options)
    allocate = torch.zeros if problem.leaves_rows else torch.empty
    out = allocate(problem.out_shape, dtype=q.dtype, device=q.device)
    if problem.sizes.num_tokens == 0 and problem.in_place:
        return out
    for name, tensor in (("q", q), ("state", state)):
        if tensor.numel():
            check_has_memory(name, tensor)
    _launch(rows, state, final, out, problem, options)
    return out


def _launch(
    rows: tuple[torch.Tensor, ...],
    state: torch.Tensor,
    final: torch.Tensor | None,
    out: torch.Tensor,
    problem: RecurrentProblem,
    options: RecurrentOptions,
) -> None:
    from fa_triton.kernels.kda_recurrent import kda_recurrent

    sizes = problem.sizes
    info = device_info(out.device)
    form = recurrent_form(problem, _tensors_given(options, has_final_state=final is not None))
    tiles = -(-sizes.value_dim // v_tile(sizes.value_dim, sizes.key_dim))
    num_tasks = problem.num_sequences * sizes.num_v_heads * tiles
    indices = options.get("ssm_state_indices")
    q, k, v, raw_gate, beta = rows
    runner(kda_recurrent)[(min(num_tasks, info.num_aiv),)](
        q=q,
        k=k,
        v=v,
        raw_gate=raw_gate,
        beta=beta,
        a_log=options.get("A_log"),
        dt_bias=options.get("dt_bias"),
        state=state,
        final_state=final,
        out=out,
        cu_seqlens=options.get("cu_seqlens"),
        ssm_state_indices=indices,
        num_accepted_tokens=options.get("num_accepted_tokens"),
        num_tasks=num_tasks,
        num_heads=sizes.num_v_heads,
        group=sizes.num_v_heads // sizes.num_heads,
        num_tokens=sizes.num_tokens,
        dim_k=sizes.key_dim,
        dim_v=sizes.value_dim,
        num_slots=problem.num_slots,
        num_steps=problem.num_steps,
        skip_index_below=problem.skip_index_below,
        scale=problem.scale,
        lower_bound=problem.gate.lower_bound,
        beta_scale=problem.beta_scale,
        **_row_strides(rows, problem.layout),
        stride_ot=sizes.num_v_heads * sizes.value_dim,
        **_state_strides("s", state),
        **_state_strides("f", final),
        stride_index=0 if indices is None else indices.stride(0),
        **dict(form.constants),
        variant=form.key,
    )


def _tensors_given(options: RecurrentOptions, *, has_final_state: bool) -> frozenset[str]:
    """Names that the kernel has for the optional tensors of this call."""
    names = {
        "a_log": "A_log",
        "dt_bias": "dt_bias",
        "cu_seqlens": "cu_seqlens",
        "ssm_state_indices": "ssm_state_indices",
        "num_accepted_tokens": "num_accepted_tokens",
    }
    given = {name for name, option in names.items() if options.get(option) is not None}
    return frozenset(given | ({"final_state"} if has_final_state else set()))


def _row_strides(rows: tuple[torch.Tensor, ...], layout: str) -> dict[str, int]:
    arguments = {}
    for name, tensor in zip("qkvgb", rows, strict=True):
        by = kda_strides(tensor, layout)
        arguments[f"stride_{name}b"] = by.outer
        arguments[f"stride_{name}t"] = by.token
        arguments[f"stride_{name}h"] = by.head
    return arguments


def _state_strides(name: str, state: torch.Tensor | None) -> dict[str, int]:
    strides = (0, 0, 0) if state is None else state.stride()[:3]
    return {f"stride_{name}{axis}": stride for axis, stride in zip("shr", strides, strict=True)}
