"""``torch.ops.fa_triton``: the chunked forward of Kimi Delta Attention and its cumulative gate."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.delta_rule.calls import chunk_over_pool, chunk_results, gate_sums
from fa_triton.ops.definition import by_name, define
from fa_triton.ops.kda_fakes import fake_chunk_results, fake_gate_sums, fake_over_pool
from fa_triton.ops.routing import KDA

_ROWS = "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta"
_LENGTHS = "Tensor? cu_seqlens=None, Tensor? chunk_indices=None"
_GATE_TENSORS = "Tensor? A_log=None, Tensor? dt_bias=None"
_GATE = "bool safe_gate=False, float? lower_bound=None, bool use_gate_in_kernel=False"
_OPTIONS = (
    f"int chunk_size=64, str layout='BSND', {_GATE}, float? scale=None, bool state_v_first=False, "
    "bool use_qk_l2norm_in_kernel=False, bool use_beta_sigmoid_in_kernel=False, "
    "bool allow_neg_eigval=False"
)
# Tensors come before the options: torch records no keyword-only tensors for autograd.
_SHARED_TENSORS = ("cu_seqlens", "chunk_indices", "A_log", "dt_bias")
_STATE_TENSORS = ("initial_state", "has_initial_state", *_SHARED_TENSORS)


def _run_results(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *args: torch.Tensor | None,
    results: list[str],
    **options: Any,
) -> list[torch.Tensor]:
    named = by_name(_STATE_TENSORS, args, options)
    return chunk_results(q, k, v, g, beta, results=tuple(results), **named)


def _fake_results(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *args: torch.Tensor | None,
    results: list[str],
    **options: Any,
) -> list[torch.Tensor]:
    named = by_name(_STATE_TENSORS, args, options)
    return fake_chunk_results(q, k, v, g, beta, results=tuple(results), **named)


def _run_over_pool(*rows: torch.Tensor, **options: Any) -> torch.Tensor:
    return chunk_over_pool(*rows[:8], **by_name(_SHARED_TENSORS, rows[8:], options))


def _fake_over_pool(*rows: torch.Tensor, **options: Any) -> torch.Tensor:
    return fake_over_pool(*rows[:8], **by_name(_SHARED_TENSORS, rows[8:], options))


def _run_gate(g: torch.Tensor, *args: torch.Tensor | None, **options: Any) -> torch.Tensor:
    return gate_sums(g, **by_name(("cu_seqlens", "A_log", "dt_bias"), args, options))


def _fake_gate(g: torch.Tensor, *args: torch.Tensor | None, **options: Any) -> torch.Tensor:
    return fake_gate_sums(g, **by_name(("cu_seqlens", "A_log", "dt_bias"), args, options))


define(
    f"chunk_kda_fwd({_ROWS}, Tensor? initial_state=None, Tensor? has_initial_state=None, "
    f"{_LENGTHS}, {_GATE_TENSORS}, *, str[] results, {_OPTIONS}) -> Tensor[]",
    run=_run_results,
    fake=_fake_results,
    subject=KDA,
)
define(
    f"chunk_kda_over_pool_({_ROWS}, Tensor(a!) initial_state, Tensor ssm_state_indices, "
    f"Tensor? has_initial_state=None, {_LENGTHS}, {_GATE_TENSORS}, *, "
    f"bool output_final_state=False, {_OPTIONS}) -> Tensor",
    run=_run_over_pool,
    fake=_fake_over_pool,
    subject=KDA,
)
define(
    f"kda_gate_cumsum(Tensor g, Tensor? cu_seqlens=None, {_GATE_TENSORS}, *, int chunk_size, "
    f"str layout='BNSD', {_GATE}) -> Tensor",
    run=_run_gate,
    fake=_fake_gate,
    subject=KDA,
)
