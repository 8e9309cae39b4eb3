"""The flow of a call: validate, plan, prepare, run, quantise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fa_triton.attention.kernels import HeadTensors, Lengths, run_attention
from fa_triton.attention.metadata import check_belongs, read_metadata
from fa_triton.attention.plans import plan_call
from fa_triton.attention.prepared import prepare
from fa_triton.attention.tiles import dtype_class
from fa_triton.device import cpu_mode
from fa_triton.incremental_attention.prefix import merge_parts, own_part, prefix_part
from fa_triton.incremental_attention.quantise import quantise
from fa_triton.incremental_attention.spans import KeySpans, key_spans
from fa_triton.incremental_attention.tensors import HIDDEN, cache_tensors, key_tensors
from fa_triton.incremental_attention.views import given_options, query_view
from fa_triton.validation import HostLengths, check_has_memory
from fa_triton.validation.incremental import validate_incre_flash_attention

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.attention.metadata import PlannedCall
    from fa_triton.incremental_problem import Cache, IncreOptions, IncreProblem


def attend_incremental(
    query: torch.Tensor, key: Cache, value: Cache, **options: Unpack[IncreOptions]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend as ``incre_flash_attention`` says.

    Returns:
        The result, and the log-sum-exp where it is asked for.
    """
    problem = validate_incre_flash_attention(query, key, value, **options)
    if query.device.type == "cpu" and cpu_mode() == "reference":
        from fa_triton.incremental_reference import incre_flash_attention_reference

        out, lse = incre_flash_attention_reference(query, key, value, **options)
        return out, lse if problem.attn.return_softmax_lse else None
    wants_lse = problem.attn.return_softmax_lse
    options = given_options(options)
    spans = key_spans(options, problem, query.device)
    if problem.prefix_length:
        part = prefix_part(options, problem, spans.lengths)
        prefix = _attend(query, *part, KeySpans(), torch.float32)
        own = _attend(query, key, value, *own_part(options, problem), spans, torch.float32)
        out, lse = merge_parts(prefix, own, options, problem)
    else:
        dtype = problem.attn.dtype if problem.output_quant is None else torch.float32
        out, lse = _attend(query, key, value, options, problem, spans, dtype)
    out = (
        out.to(problem.attn.dtype)
        if problem.output_quant is None
        else quantise(out, options, problem)
    )
    return out.reshape(problem.out_shape), lse if wants_lse else None


def _attend(
    query: torch.Tensor,
    key: Cache,
    value: Cache,
    options: IncreOptions,
    problem: IncreProblem,
    spans: KeySpans,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend over the own keys; returns the result in ``dtype`` and the log-sum-exp, if any."""
    attn = problem.attn
    keys = key_tensors(key, value, options.get("block_table"), problem)
    for name, tensor in (("query", query), ("key", keys.k), ("value", keys.v)):
        check_has_memory(name, tensor)
    q = query_view(query, problem)
    planned = _plan(options, problem)
    call = prepare(attn, planned.header)
    out = torch.empty(attn.out_shape, dtype=dtype, device=query.device)
    lse = torch.empty(attn.lse_shape, dtype=torch.float32, device=query.device)
    run_attention(
        q,
        keys,
        HeadTensors(options.get("sinks"), None),
        Lengths(None, None, None, spans.lengths),
        out,
        lse if attn.return_softmax_lse else None,
        planned.table,
        call,
        cache_tensors(key, value, options, problem, call.units, spans),
    )
    if attn.return_softmax_lse and problem.masked_row == "mean":
        # the logits of such rows are those of hidden keys
        lse.masked_fill_(lse < HIDDEN["mean"] / 2, torch.inf)
    return out, lse


def _plan(options: IncreOptions, problem: IncreProblem) -> PlannedCall:
    attn = problem.attn
    metadata = options.get("metadata")
    if metadata is not None:
        planned = read_metadata(metadata)
        check_belongs(attn, planned.header)
        return planned
    kv_lens = problem.rooms if problem.host_lengths is None else problem.host_lengths
    lengths = HostLengths(
        np.full(attn.batch_size, attn.seqlen_q, np.int64),
        np.asarray(kv_lens, np.int64),
        are_bounds=problem.has_device_lengths,
    )
    return plan_call(attn, lengths, attn.device, dtype_class(attn.dtype))
