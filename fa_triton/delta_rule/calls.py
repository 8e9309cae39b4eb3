"""The flow of a call: problem, chunk tables, kernel forms, phases, results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa_triton.delta_rule.buffers import allocate_buffers
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
from fa_triton.validation import check_has_memory

if TYPE_CHECKING:
    from fa_triton.delta_rule.problem import ChunkKdaProblem
    from fa_triton.delta_rule.tables import Indices
    from fa_triton.validation.delta_rule import DeltaRuleSizes, GateOptions

_HEAD_MAJOR_RESULTS = ("gk", "Aqk", "Akk", "w", "u", "qg", "kg", "v_new", "h")


def run_chunks(
    problem: ChunkKdaProblem,
    inputs: DeltaRuleInputs,
    gate: GateInputs,
    states: StateTensors,
    cu_seqlens: Indices | None,
    chunk_indices: Indices | None,
) -> dict[str, torch.Tensor]:
    """Run the phases that the wanted results need.

    Returns:
        The results by name, with the rank of the inputs.
    """
    for name, tensor in (*vars(inputs).items(), ("g", gate.g)):
        check_has_memory(name, tensor)
    sizes = problem.sizes
    tables = chunk_tables(
        batch_size=sizes.batch_size,
        num_tokens=sizes.num_tokens,
        chunk_size=problem.chunk_size,
        device=sizes.device,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
    )
    prepared = prepare_chunks(problem)
    buffers = allocate_buffers(problem, tables.num_chunks)
    attn_out = torch.empty(
        (sizes.batch_size, sizes.num_tokens, sizes.num_v_heads, sizes.value_dim),
        dtype=sizes.dtype,
        device=sizes.device,
    )
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
        phases.finalize(attn_out)
    results = {"attn_out": attn_out, "final_state": states.final_state}
    results |= {name: getattr(buffers, name) for name in _HEAD_MAJOR_RESULTS}
    is_rank_3 = problem.layout in ("TND", "NTD")
    return {
        name: tensor[0] if is_rank_3 and name != "final_state" else tensor
        for name, tensor in results.items()
        if name in problem.results
    }


def sum_gates(
    sizes: DeltaRuleSizes,
    options: GateOptions,
    gate: GateInputs,
    *,
    layout: str,
    chunk_size: int,
    cu_seqlens: Indices | None,
) -> torch.Tensor:
    """Run Gate alone; returns gk with the rank of g."""
    check_has_memory("g", gate.g)
    tables = chunk_tables(
        batch_size=sizes.batch_size,
        num_tokens=sizes.num_tokens,
        chunk_size=chunk_size,
        device=sizes.device,
        cu_seqlens=cu_seqlens,
        chunk_indices=None,
    )
    rows = (sizes.batch_size, sizes.num_v_heads, sizes.num_tokens)
    gk = torch.empty((*rows, sizes.key_dim), dtype=torch.float32, device=sizes.device)
    run_gate(
        gate,
        gk,
        tables.chunks,
        layout=layout,
        lower_bound=options.lower_bound,
        form=gate_form(sizes, options, chunk_size, tiles_for(sizes, chunk_size).gate_k),
    )
    return gk[0] if layout in ("TND", "NTD") else gk
