"""The phases of one call as separate calls, for their share of the time."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fa_triton.delta_rule.buffers import allocate_buffers
from fa_triton.delta_rule.phases import (
    ChunkPhases,
    DeltaRuleInputs,
    GateInputs,
    StateTensors,
    run_gate,
)
from fa_triton.delta_rule.prepared import prepare_chunks
from fa_triton.delta_rule.tables import chunk_tables
from fa_triton.validation.kda import validate_chunk_kda
from perf.kda_workloads import KdaInputs

Call = Callable[[], None]


def phase_calls(inputs: KdaInputs) -> dict[str, Call]:
    """Return a call per phase; each may be repeated, in any order after one round of all."""
    options = dict(inputs.options, layout="BSND", scale=None)
    del options["output_final_state"]
    problem = validate_chunk_kda(*inputs.rows, results=("attn_out", "final_state"), **options)
    sizes = problem.sizes
    tables = chunk_tables(
        batch_size=sizes.batch_size,
        num_tokens=sizes.num_tokens,
        chunk_size=problem.chunk_size,
        device=sizes.device,
        cu_seqlens=None,
        chunk_indices=None,
    )
    prepared = prepare_chunks(problem)
    buffers = allocate_buffers(problem, tables.num_chunks, is_merged=bool(prepared.forms.merges))
    final_state = torch.empty_like(inputs.initial_state)
    states = StateTensors(inputs.initial_state, final_state, None, None)
    rows = DeltaRuleInputs(inputs.q, inputs.k, inputs.v, inputs.beta)
    phases = ChunkPhases(rows, buffers, tables, prepared)

    def gate() -> None:
        run_gate(
            GateInputs(inputs.g, inputs.A_log, inputs.dt_bias),
            buffers.gk,
            tables.chunks,
            layout="BSND",
            lower_bound=problem.gate.lower_bound,
            form=prepared.forms.gate,
        )

    return {
        "gate": gate,
        "scores": phases.scores,
        "inverse": phases.inverse,
        "post-WU": phases.post_wu,
        "FwdH": lambda: phases.fwd_h(states),
        "finalize": phases.finalize,
    }
