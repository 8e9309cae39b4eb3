"""The flow of a call: validate, describe, choose tiles, plan, run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa_triton.attention.fractals import problem_of_rows, unfold
from fa_triton.attention.kernels import HeadTensors, KeyTensors, Lengths, run_attention
from fa_triton.attention.known_problems import problem_of
from fa_triton.attention.metadata import PlannedCall, read_metadata
from fa_triton.attention.plans import PlanOptions, plan_call
from fa_triton.attention.prepared import prepare, prepare_for_table
from fa_triton.attention.tiles import dtype_class
from fa_triton.attention.value_checks import check_values
from fa_triton.device import cpu_mode
from fa_triton.problem import AttnOptions, MetadataOptions
from fa_triton.validation import (
    check_has_memory,
    lengths_to_plan,
    validate_metadata,
    value_checks_enabled,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


def plan_batch(
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    *,
    device: torch.device | str | None,
    **options: Unpack[MetadataOptions],
) -> PlannedCall:
    """Plan as ``flash_attn_metadata`` says; equal batches share one table."""
    problem = validate_metadata(num_heads_q, num_heads_kv, head_dim, **options)
    tensors = _lengths(options)
    lengths = lengths_to_plan(problem, avoid_reading=False, **vars(tensors))
    given = [tensor.device for tensor in vars(tensors).values() if tensor is not None]
    place = given[0] if given else torch.get_default_device()
    if device is not None:
        place = torch.device(device)
    plan_options = PlanOptions(
        problem.planner, problem.num_aic, problem.num_aiv, problem.block_q, problem.block_kv
    )
    return plan_call(problem, lengths, place, options=plan_options)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Unpack[AttnOptions]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as ``flash_attn`` says."""
    problem = problem_of(q, k, v, options)
    lengths = _lengths(options)
    reads_values = value_checks_enabled()
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_has_memory(name, tensor)
    if q.device.type == "cpu" and cpu_mode() == "reference":
        return _on_reference(q, k, v, options)
    block_table, metadata = options.get("block_table"), options.get("metadata")
    # what the kernels get: where they cannot load fractals, pages of rows
    attended = problem_of_rows(problem)
    if metadata is None:
        avoid_reading = q.device.type != "cpu"
        host_lengths = lengths_to_plan(problem, avoid_reading=avoid_reading, **vars(lengths))
        planned = plan_call(attended, host_lengths, q.device, dtype_class(problem.dtype))
        call = prepare(attended, planned.header)
    else:
        planned = read_metadata(metadata)
        call = prepare_for_table(attended, planned.header)
    if reads_values:
        check_values(problem, lengths, k, block_table, metadata)
    out = torch.empty(problem.out_shape, dtype=q.dtype, device=q.device)
    lse = None
    if problem.return_softmax_lse:
        lse = torch.empty(problem.lse_shape, dtype=torch.float32, device=q.device)
    heads = HeadTensors(options.get("sinks"), options.get("alibi_slopes"))
    keys = KeyTensors(k, v, block_table)
    if attended is not problem:
        keys = unfold(problem, keys, lengths.seqused_kv, planned.header.longest_q).keys
    run_attention(q, keys, heads, lengths, out, lse, planned.table, call)
    return out, torch.zeros(1, dtype=torch.float32, device=q.device) if lse is None else lse


def _lengths(options: AttnOptions | MetadataOptions) -> Lengths:
    return Lengths(
        options.get("cu_seqlens_q"),
        options.get("cu_seqlens_kv"),
        options.get("seqused_q"),
        options.get("seqused_kv"),
    )


def _on_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttnOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Answer from the eager oracle, rounded to the dtype of q."""
    from fa_triton.reference import flash_attn_reference

    out, lse = flash_attn_reference(q, k, v, **options)
    return out.to(q.dtype), lse.float()
