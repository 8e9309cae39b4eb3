"""The flow of a call: validate, chunk tables, kernel forms, phases, results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fa_triton.delta_rule.buffers import allocate_buffers
from fa_triton.delta_rule.layouts import PACKED_LAYOUTS
from fa_triton.delta_rule.phases import (
    ChunkPhases,
    DeltaRuleInputs,
    GateInputs,
    StateTensors,
    run_gate,
)
from fa_triton.delta_rule.prepared import prepare_chunks, tiles_for
from fa_triton.delta_rule.tables import chunk_tables
from fa_triton.delta_rule.variants import gate_form
from fa_triton.device import cpu_mode
from fa_triton.validation import check_has_memory, value_checks_enabled
from fa_triton.validation.kda import validate_chunk_kda, validate_gate_cumsum
from fa_triton.validation.scalars import MAX_INT32
from fa_triton.validation.slot_values import check_slots

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.delta_rule.problem import ChunkKdaOptions, ChunkKdaProblem, GateCallOptions


def chunk_results(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    *,
    results: tuple[str, ...],
    **options: Unpack[ChunkKdaOptions],
) -> list[torch.Tensor]:
    """Return the named results of ``chunk_kda_fwd``, in this order."""
    problem = validate_chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        results=results,
        initial_state=initial_state,
        has_initial_state=has_initial_state,
        **options,
    )
    if q.device.type == "cpu" and cpu_mode() == "reference":
        from fa_triton.delta_rule.chunk_reference import chunk_results_by_reference

        rows = (q, k, v, g, beta)
        states = (initial_state, has_initial_state)
        return chunk_results_by_reference(rows, *states, problem, options)
    final_state = None
    if problem.wants("final_state"):
        shape = problem.shapes(0).of("final_state")
        final_state = torch.empty(shape, dtype=torch.float32, device=q.device)
    states = StateTensors(initial_state, final_state, None, _as_int8(has_initial_state))
    inputs = DeltaRuleInputs(q, k, v, beta)
    found = _run_chunks(problem, inputs, _gate_inputs(g, options), states, options)
    return [found[name] for name in results]


def chunk_over_pool(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    has_initial_state: torch.Tensor | None = None,
    *,
    output_final_state: bool,
    **options: Unpack[ChunkKdaOptions],
) -> torch.Tensor:
    """Return the result of ``chunk_kda``; the pool ``initial_state`` takes the final states."""
    results = ("attn_out", "final_state") if output_final_state else ("attn_out",)
    problem = validate_chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        results=results,
        initial_state=initial_state,
        ssm_state_indices=ssm_state_indices,
        has_initial_state=has_initial_state,
        **options,
    )
    if value_checks_enabled():
        _check_pool_slots(ssm_state_indices, initial_state, problem, options)
    if q.device.type == "cpu" and cpu_mode() == "reference":
        from fa_triton.delta_rule.chunk_reference import chunk_over_pool_by_reference

        rows = (q, k, v, g, beta)
        slots = (initial_state, ssm_state_indices, has_initial_state)
        return chunk_over_pool_by_reference(rows, *slots, problem, options)
    states = StateTensors(
        initial_state,
        initial_state if output_final_state else None,
        _as_slots(ssm_state_indices),
        _as_int8(has_initial_state),
    )
    inputs = DeltaRuleInputs(q, k, v, beta)
    return _run_chunks(problem, inputs, _gate_inputs(g, options), states, options)["attn_out"]


def gate_sums(
    g: torch.Tensor, *, chunk_size: int, **options: Unpack[GateCallOptions]
) -> torch.Tensor:
    """Run Gate alone; returns gk with the rank of g."""
    sizes, gate = validate_gate_cumsum(g, chunk_size=chunk_size, **options)
    layout = options.get("layout", "BNSD")
    tables = chunk_tables(
        batch_size=sizes.batch_size,
        num_tokens=sizes.num_tokens,
        chunk_size=chunk_size,
        device=sizes.device,
        cu_seqlens=options.get("cu_seqlens"),
        chunk_indices=None,
    )
    if g.device.type == "cpu" and cpu_mode() == "reference":
        from fa_triton.kda_reference import kda_gate_cumsum_reference

        return kda_gate_cumsum_reference(g, chunk_size, **options).float()
    rows = (sizes.batch_size, sizes.num_v_heads, sizes.num_tokens)
    gk = torch.empty((*rows, sizes.key_dim), dtype=torch.float32, device=sizes.device)
    run_gate(
        _gate_inputs(g, options),
        gk,
        tables.chunks,
        layout=layout,
        lower_bound=gate.lower_bound,
        form=gate_form(sizes, gate, chunk_size, tiles_for(sizes, chunk_size).gate_k),
    )
    return gk[0] if layout in PACKED_LAYOUTS else gk


def _as_int8(flags: torch.Tensor | None) -> torch.Tensor | None:
    """Same memory, in a dtype that kernels read."""
    return None if flags is None else flags.view(torch.int8)


def _as_slots(indices: torch.Tensor) -> torch.Tensor:
    """Dense int32, as the kernel reads slots; what int32 cannot hold stays outside of any pool."""
    if indices.dtype == torch.int64:
        indices = indices.clamp(-1, MAX_INT32)
    return indices.to(torch.int32).contiguous()


def _check_pool_slots(
    indices: torch.Tensor, pool: torch.Tensor, problem: ChunkKdaProblem, options: ChunkKdaOptions
) -> None:
    slots = indices.cpu().numpy()
    lengths = np.full(problem.num_sequences, problem.sizes.num_tokens)
    cu_seqlens = options.get("cu_seqlens")
    if cu_seqlens is not None:
        lengths = torch.as_tensor(cu_seqlens).cpu().diff().numpy()
    check_slots(
        "ssm_state_indices",
        slots,
        pool.shape[0],
        skipped=slots < 0,
        used=lengths > 0,
        is_written=problem.wants("final_state"),
    )


def _gate_inputs(g: torch.Tensor, options: GateCallOptions) -> GateInputs:
    return GateInputs(g, options.get("A_log"), options.get("dt_bias"))


def _run_chunks(
    problem: ChunkKdaProblem,
    inputs: DeltaRuleInputs,
    gate: GateInputs,
    states: StateTensors,
    options: ChunkKdaOptions,
) -> dict[str, torch.Tensor]:
    """Run the phases that the wanted results need.

    Returns:
        The results by name, with the rank of the inputs.
    """
    sizes = problem.sizes
    if sizes.num_tokens:
        for name, tensor in (*vars(inputs).items(), ("g", gate.g)):
            check_has_memory(name, tensor)
    tables = chunk_tables(
        batch_size=sizes.batch_size,
        num_tokens=sizes.num_tokens,
        chunk_size=problem.chunk_size,
        device=sizes.device,
        cu_seqlens=options.get("cu_seqlens"),
        chunk_indices=options.get("chunk_indices"),
    )
    prepared = prepare_chunks(problem)
    buffers = allocate_buffers(problem, tables.num_chunks, is_merged=bool(prepared.forms.merges))
    run_gate(
        gate,
        buffers.gk,
        tables.chunks,
        layout=problem.layout,
        lower_bound=problem.gate.lower_bound,
        form=prepared.forms.gate,
    )
    phases = ChunkPhases(inputs, buffers, tables, prepared)
    needs_states = problem.wants("attn_out", "final_state", "v_new", "h")
    needs_products = needs_states or problem.wants("w", "u", "qg", "kg")
    needs_inverse = needs_products or problem.wants("Akk")
    if needs_inverse or problem.wants("Aqk"):
        phases.norm()
        phases.scores()
    if needs_inverse:
        phases.inverse()
    if needs_products:
        phases.post_wu()
    if needs_states:
        phases.fwd_h(states)
    if problem.wants("attn_out"):
        phases.finalize()
    is_rank_3 = problem.layout in PACKED_LAYOUTS
    found = {}
    for name in problem.results:
        if name != "final_state":
            tensor: torch.Tensor = getattr(buffers, name)
            found[name] = tensor[0] if is_rank_3 else tensor
    if states.final_state is not None:
        found["final_state"] = states.final_state
    return found
