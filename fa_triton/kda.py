"""Kimi Delta Attention over whole sequences: what the operators take, return and promise.

The flow of a call is in ``delta_rule/calls.py``; under tracing the same flow runs inside the
operators of ``fa_triton.ops``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch

from fa_triton.delta_rule.calls import chunk_over_pool, chunk_results, gate_sums
from fa_triton.delta_rule.outputs import ChunkKdaOutputs
from fa_triton.delta_rule.problem import ChunkKdaOptions, GateCallOptions
from fa_triton.ops.routing import KDA, goes_through_dispatcher
from fa_triton.validation.kda import chosen_results
from fa_triton.validation.scalars import as_flag

OptionsT = TypeVar("OptionsT", ChunkKdaOptions, GateCallOptions)


def chunk_kda_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    chunk_size: int,
    *,
    layout: str = "BSND",
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    chunk_indices: torch.Tensor | Sequence[Any] | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    outputs: Sequence[str] | None = None,
) -> ChunkKdaOutputs:
    """Chunked forward of Kimi Delta Attention with everything a backward pass needs.

    Per value head, with state S ``[K, V]`` in fp32: ``S = diag(e^a_t) S``; ``S += beta_t k_t (v_t -
    S' k_t)'``; ``out_t = scale S' q_t``. Value head hv reads q/k head ``hv // (HV / H)``.

    Args:
        q: Queries, fp16 or bf16: BSND ``[B, T, H, K]``, BNSD ``[B, H, T, K]``, TND ``[T, H, K]`` or
            NTD ``[H, T, K]``. The last axis is dense, other strides are free, nothing is copied.
        k: Keys, shape and dtype of q.
        v: Values ``[.., HV, .., V]`` in the same layout, dtype of q; HV is a multiple of H, at most
            128. K and V are multiples of 16 up to 256.
        g: Gates, one per token, value head and key column, fp32 or bf16: natural-log decays a <= 0,
            finite, or raw with ``use_gate_in_kernel``.
        beta: Step sizes, one per token and value head, fp32 or bf16.
        scale: Factor on the result; None is ``K ** -0.5``.
        chunk_size: Tokens of a chunk C: 64 or 128, also 16 and 32.
        layout: Of q, k, v, g and beta.
        initial_state: States ``[N, HV, K, V]`` fp32 before the sequences; None is zero. Untouched.
        output_final_state: Whether the states after the sequences are wanted.
        cu_seqlens: Starts of packed sequences ``[N + 1]`` from 0 to T, int64 or int32 tensor (on
            the CPU or the device of q) or host list; B is 1 then. Sequences may be empty.
        chunk_indices: Pairs (sequence, chunk of it), ``[2 Nc]`` or ``[Nc, 2]``, of exactly the
            chunks that ``cu_seqlens`` has, in order; made where absent.
        safe_gate: With ``use_gate_in_kernel`` the bounded gate ``lower_bound sigmoid(e^A_log x)``
            instead of ``-e^A_log softplus(x)``, x = g + dt_bias; else a promise that every decay is
            at least ``lower_bound``. Saves a phase.
        lower_bound: Smallest decay with ``safe_gate``, in [-5, 0); None is -5.
        use_gate_in_kernel: Whether g is raw.
        A_log: Logarithms of the gate's rate ``[HV]``, fp32; with ``use_gate_in_kernel``.
        dt_bias: Bias on the raw gate ``[HV * K]``, fp32.
        disable_recompute: Whether all results are returned.
        return_intermediate_states: Whether ``h`` is returned.
        state_v_first: Whether states are ``[V, K]``.
        use_qk_l2norm_in_kernel: Whether rows of q and k are divided by ``sqrt(sum x^2 + 1e-6)``.
        use_beta_sigmoid_in_kernel: Whether beta is raw: its sigmoid counts.
        allow_neg_eigval: Whether that sigmoid counts twice.
        outputs: Names of the results to return, instead of what the flags say; phases that none of
            them needs do not run.

    Returns:
        Twelve results by name and position, see :class:`ChunkKdaOutputs`. By default: attn_out,
        Aqk, Akk; gk unless ``use_gate_in_kernel``; the final state and h by their flags; everything
        with ``disable_recompute``. ``initial_state`` is the caller's own object.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient; ``torch.vmap``, ``torch.func.grad``.

    Notes:
        Bitwise reproducible, on any number of cores. Host sync: ``cu_seqlens`` on an accelerator is
        copied once per tensor, not with ``chunk_indices`` on the device as well, whose values are
        then trusted unless ``FA_TRITON_CHECK_VALUES=1``. Nothing is mutated. Source: CANN's
        ``chunk_kda_fwd``; options of flash-linear-attention's ``chunk_kda``.
    """
    results = chosen_results(
        outputs,
        output_final_state=output_final_state,
        use_gate_in_kernel=use_gate_in_kernel,
        disable_recompute=disable_recompute,
        return_intermediate_states=return_intermediate_states,
    )
    options: ChunkKdaOptions = {
        "layout": layout,
        "cu_seqlens": cu_seqlens,
        "safe_gate": safe_gate,
        "lower_bound": lower_bound,
        "use_gate_in_kernel": use_gate_in_kernel,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "scale": scale,
        "chunk_size": chunk_size,
        "chunk_indices": chunk_indices,
        "state_v_first": state_v_first,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
    }
    found = _chunk_results((q, k, v, g, beta), (initial_state, None), results, options)
    return ChunkKdaOutputs.of(results, found, initial_state)


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    *,
    chunk_size: int = 64,
    layout: str = "BSND",
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    ssm_state_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    chunk_indices: torch.Tensor | Sequence[Any] | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    state_v_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Chunked Kimi Delta Attention for inference: the result and the states, nothing else.

    Args:
        q: As :func:`chunk_kda_fwd`, like all arguments that are not listed here.
        k: Keys.
        v: Values.
        g: Gates.
        beta: Step sizes.
        scale: Factor on the result; None is ``K ** -0.5``.
        chunk_size: Tokens of a chunk.
        layout: Of q, k, v, g and beta.
        initial_state: States ``[N, HV, K, V]`` fp32, or with ``ssm_state_indices`` a pool of them
            ``[slots, HV, K, V]``, fp32, bf16 or fp16, dense within a slot.
        output_final_state: Whether the states after the sequences are wanted: returned, or written
            to the pool.
        ssm_state_indices: Slot of each sequence in the pool ``[N]``, int32 or int64, any stride. A
            negative index, or one past the pool: the sequence starts from zero, leaves no state.
        has_initial_state: Whether each sequence has a state to start from ``[N]``, bool; None: all.
        cu_seqlens: Starts of packed sequences.
        chunk_indices: Pairs (sequence, chunk).
        safe_gate: Whether decays are bounded.
        lower_bound: Smallest decay with ``safe_gate``.
        use_gate_in_kernel: Whether g is raw.
        A_log: Logarithms of the gate's rate.
        dt_bias: Bias on the raw gate.
        state_v_first: Whether states are ``[V, K]``.
        use_qk_l2norm_in_kernel: Whether rows of q and k are normalised.
        use_beta_sigmoid_in_kernel: Whether beta is raw.
        allow_neg_eigval: Whether its sigmoid counts twice.

    Returns:
        ``attn_out`` as of :func:`chunk_kda_fwd`; the final states fp32 ``[N, HV, K, V]``, the pool
        itself with ``ssm_state_indices``, or None.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient; ``torch.vmap``, ``torch.func.grad``.

    Notes:
        Mutates the pool, with ``ssm_state_indices`` and ``output_final_state`` only; the slots of
        empty sequences stay as they are, and two sequences must not share a slot. Scores and their
        inverse live in memory of the call and are not returned. Host sync as
        :func:`chunk_kda_fwd`; the slots are never read on the host. Source: ``chunk_kda`` of
        flash-linear-attention and of vLLM's Kimi-Linear layer.
    """
    options: ChunkKdaOptions = {
        "layout": layout,
        "cu_seqlens": cu_seqlens,
        "safe_gate": safe_gate,
        "lower_bound": lower_bound,
        "use_gate_in_kernel": use_gate_in_kernel,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "scale": scale,
        "chunk_size": chunk_size,
        "chunk_indices": chunk_indices,
        "state_v_first": state_v_first,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
    }
    wants_final = as_flag("output_final_state", output_final_state)
    results = ("attn_out", "final_state") if wants_final else ("attn_out",)
    rows = (q, k, v, g, beta)
    if ssm_state_indices is None:
        found = _chunk_results(rows, (initial_state, has_initial_state), results, options)
        return found[0], found[1] if wants_final else None
    states: tuple[Any, ...] = (initial_state, ssm_state_indices, has_initial_state)
    run = chunk_over_pool
    if _is_traced(*rows, *states, *options.values()):
        run = torch.ops.fa_triton.chunk_kda_over_pool_
        options = _with_tensors(options)
    out = run(*rows, *states, output_final_state=wants_final, **options)
    return out, initial_state if wants_final else None


def kda_gate_cumsum(
    g: torch.Tensor,
    chunk_size: int,
    *,
    layout: str = "BNSD",
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    use_gate_in_kernel: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
) -> torch.Tensor:
    """Activate gates and sum them up inside each chunk.

    Args:
        g: Gates, fp32 or bf16: BNSD ``[B, HV, T, K]``, NTD ``[HV, T, K]``, also BSND and TND.
        chunk_size: Tokens of a chunk: 16, 32, 64 or 128.
        layout: Of g.
        A_log: Logarithms of the gate's rate ``[HV]``, fp32; with ``use_gate_in_kernel``.
        dt_bias: Bias on the raw gate ``[HV * K]``, fp32.
        cu_seqlens: Starts of packed sequences ``[N + 1]``; chunks start anew at each.
        use_gate_in_kernel: Whether g is raw, else natural-log decays.
        safe_gate: Whether the raw gate is the bounded one, see :func:`chunk_kda_fwd`.
        lower_bound: Smallest decay with ``safe_gate``; None is -5.

    Returns:
        ``gk [B, HV, T, K]``, or ``[HV, T, K]`` for rank 3: fp32, log2, head-major whatever the
        layout.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient; ``torch.vmap``, ``torch.func.grad``.

    Notes:
        Host sync: ``cu_seqlens`` on an accelerator is copied once per tensor. Nothing is mutated.
        Source: CANN's ``kda_gate_cumsum``.
    """
    options: GateCallOptions = {
        "layout": layout,
        "cu_seqlens": cu_seqlens,
        "safe_gate": safe_gate,
        "lower_bound": lower_bound,
        "use_gate_in_kernel": use_gate_in_kernel,
        "A_log": A_log,
        "dt_bias": dt_bias,
    }
    run = gate_sums
    if _is_traced(g, *options.values()):
        run = torch.ops.fa_triton.kda_gate_cumsum
        options = _with_tensors(options)
    return run(g, chunk_size=chunk_size, **options)


def _chunk_results(
    rows: tuple[torch.Tensor, ...],
    states: tuple[torch.Tensor | None, torch.Tensor | None],
    results: tuple[str, ...],
    options: ChunkKdaOptions,
) -> list[torch.Tensor]:
    if _is_traced(*rows, *states, *options.values()):
        run = torch.ops.fa_triton.chunk_kda_fwd
        return run(*rows, *states, results=list(results), **_with_tensors(options))
    q, k, v, g, beta = rows
    return chunk_results(q, k, v, g, beta, *states, results=results, **options)


def _is_traced(*arguments: object) -> bool:
    return goes_through_dispatcher(
        *(a for a in arguments if isinstance(a, torch.Tensor)), subject=KDA
    )


def _with_tensors(options: OptionsT) -> OptionsT:
    """Lengths of a host list as a tensor, as an operator takes them."""
    lists = {
        name: torch.tensor(value, dtype=torch.int64)
        for name, value in options.items()
        if name in ("cu_seqlens", "chunk_indices") and isinstance(value, Sequence)
    }
    return cast(OptionsT, {**options, **lists})
