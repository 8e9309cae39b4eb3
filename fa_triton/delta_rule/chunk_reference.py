"""The chunked forward without kernels: the float64 oracle, rounded to the dtypes of the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fa_triton.delta_rule.tables import chunk_tables
from fa_triton.kda_reference import chunk_kda_reference

if TYPE_CHECKING:
    from fa_triton.delta_rule.outputs import ChunkKdaOutputs
    from fa_triton.delta_rule.problem import ChunkKdaOptions, ChunkKdaProblem

Rows = tuple[torch.Tensor, ...]


def chunk_results_by_reference(
    rows: Rows,
    initial_state: torch.Tensor | None,
    has_initial_state: torch.Tensor | None,
    problem: ChunkKdaProblem,
    options: ChunkKdaOptions,
) -> list[torch.Tensor]:
    """Answer as the phases do.

    Args:
        rows: q, k, v, g and beta.
        initial_state: States before the sequences.
        has_initial_state: Which sequences have one, None for all.
        problem: The validated call, which names the results.
        options: Its options.

    Returns:
        The results in the order of their names.
    """
    if initial_state is not None and has_initial_state is not None:
        initial_state = initial_state.clone()
        initial_state[~has_initial_state] = 0
    fp32 = ("gk", "final_state")
    found = _by_reference(rows, initial_state, problem, options)._asdict()
    return [
        found[name].to(torch.float32 if name in fp32 else problem.sizes.dtype)
        for name in problem.results
    ]


def chunk_over_pool_by_reference(
    rows: Rows,
    pool: torch.Tensor,
    indices: torch.Tensor,
    has_initial_state: torch.Tensor | None,
    problem: ChunkKdaProblem,
    options: ChunkKdaOptions,
) -> torch.Tensor:
    """Answer as the phases do; the slots of the pool take the final states if these are wanted."""
    index = indices.long()
    has_slot = (index >= 0) & (index < len(pool))
    starts = has_slot if has_initial_state is None else has_slot & has_initial_state
    before = pool[index.clamp(0, len(pool) - 1)].double()
    before[~starts] = 0
    found = _by_reference(rows, before, problem, options)._asdict()
    if problem.wants("final_state"):
        cu_seqlens = options.get("cu_seqlens")
        if cu_seqlens is None:
            has_tokens = torch.full_like(has_slot, problem.sizes.num_tokens > 0)
        else:
            has_tokens = torch.as_tensor(cu_seqlens, device=pool.device).diff() > 0
        written = has_slot & has_tokens
        pool[index[written]] = found["final_state"][written].to(pool.dtype)
    return found["attn_out"].to(problem.sizes.dtype)


def _by_reference(
    rows: Rows,
    initial_state: torch.Tensor | None,
    problem: ChunkKdaProblem,
    options: ChunkKdaOptions,
) -> ChunkKdaOutputs:
    # the values of lengths and chunk indices are checked where tables are made of them
    chunk_tables(
        batch_size=problem.sizes.batch_size,
        num_tokens=problem.sizes.num_tokens,
        chunk_size=problem.chunk_size,
        device=problem.sizes.device,
        cu_seqlens=options.get("cu_seqlens"),
        chunk_indices=options.get("chunk_indices"),
    )
    named: dict[str, Any] = {**options, "scale": problem.scale, "chunk_size": problem.chunk_size}
    q, k, v, g, beta = rows
    return chunk_kda_reference(
        q,
        k,
        v,
        g,
        beta,
        initial_state=initial_state,
        outputs=problem.results,
        out_dtype=torch.float64,
        **named,
    )
