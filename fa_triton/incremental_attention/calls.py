"""The flow of a call: validate, plan, prepare, run, quantise."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import torch

from fa_triton.attention.kernels import HeadTensors, Lengths, run_attention
from fa_triton.attention.known_problems import KnownProblems
from fa_triton.attention.metadata import read_metadata
from fa_triton.attention.plans import plan_call
from fa_triton.attention.prepared import prepare, prepare_for_table
from fa_triton.attention.tiles import dtype_class
from fa_triton.device import cpu_mode
from fa_triton.incremental_attention.fractals import of_rows, unfold_caches
from fa_triton.incremental_attention.prefix import merge_parts, own_part, prefix_part
from fa_triton.incremental_attention.quantise import quantise
from fa_triton.incremental_attention.spans import KeySpans, key_spans
from fa_triton.incremental_attention.steps import keep_step, repeat_step
from fa_triton.incremental_attention.tensors import HIDDEN, cache_tensors, key_tensors
from fa_triton.incremental_attention.value_checks import check_values
from fa_triton.incremental_attention.views import cache_views, given_options, query_view
from fa_triton.validation import HostLengths, check_has_memory, value_checks_enabled
from fa_triton.validation.incremental import validate_incre_flash_attention

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.attention.metadata import PlannedCall
    from fa_triton.attention.prepared import PreparedCall
    from fa_triton.incremental_problem import Cache, IncreOptions, IncreProblem

State: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"

KNOWN: KnownProblems[IncreProblem] = KnownProblems(validate_incre_flash_attention)


def attend_incremental(
    query: torch.Tensor, key: Cache, value: Cache, **options: Unpack[IncreOptions]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend as ``incre_flash_attention`` says.

    Returns:
        The result, and the log-sum-exp where it is asked for.
    """
    problem = KNOWN.of(query, key, value, options)
    reads_values = value_checks_enabled()
    wants_lse = problem.attn.return_softmax_lse
    if query.device.type == "cpu" and cpu_mode() == "reference":
        from fa_triton.incremental_reference import incre_flash_attention_reference

        out, lse = incre_flash_attention_reference(query, key, value, **options)
        return out, lse if wants_lse else None
    if not reads_values:
        repeated = repeat_step(problem, query, key, value, options)
        if repeated is not None:
            return repeated, None
    options = given_options(options)
    if reads_values:
        check_values(problem, key, options)
    spans = key_spans(options, problem, query.device)
    if problem.prefix_length:
        part = prefix_part(options, problem, spans.lengths)
        # parts have a log-sum-exp, whether the call asks for it or not
        prefix = cast("State", _attend(query, *part, KeySpans(), torch.float32))
        own_options, own = own_part(options, problem)
        state = cast("State", _attend(query, key, value, own_options, own, spans, torch.float32))
        out, lse = merge_parts(prefix, state, options, problem)
        # weights per row are transposed, which a product of tensors may follow
        out = out.contiguous()
    else:
        dtype = problem.attn.dtype if problem.output_quant is None else torch.float32
        out, lse = _attend(query, key, value, options, problem, spans, dtype)
    if problem.output_quant is not None:
        out = quantise(out, options, problem)
    elif problem.prefix_length:
        out = out.to(problem.attn.dtype)
    return out.view(problem.out_shape), lse if wants_lse else None


def _attend(
    query: torch.Tensor,
    key: Cache,
    value: Cache,
    options: IncreOptions,
    problem: IncreProblem,
    spans: KeySpans,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend over the own keys; returns the result in ``dtype`` and the log-sum-exp, if any."""
    attn = problem.attn
    caches = cache_views(key, problem), cache_views(value, problem)
    keys = key_tensors(caches, options.get("block_table"))
    for name, tensor in (("query", query), ("key", keys.k), ("value", keys.v)):
        check_has_memory(name, tensor)
    attended = of_rows(problem)
    planned, call = _plan(options.get("metadata"), attended)
    if attended is not problem:
        caches, keys, options = unfold_caches(problem, keys, options, spans, planned.header)
    out = torch.empty(attn.out_shape, dtype=dtype, device=query.device)
    lse = None
    if attn.return_softmax_lse:
        lse = torch.empty(attn.lse_shape, dtype=torch.float32, device=query.device)
    repeat = run_attention(
        query_view(query, problem),
        keys,
        HeadTensors(options.get("sinks"), None),
        Lengths(None, None, None, spans.lengths),
        out,
        lse,
        planned.table,
        call,
        cache_tensors(caches, options, attended, call.units, spans),
    )
    if attended is problem and dtype == attn.dtype:
        keep_step(problem, options, spans.lengths, planned, repeat)
    if lse is not None and problem.masked_row == "mean":
        # the logits of such rows are those of hidden keys
        lse.masked_fill_(lse < HIDDEN["mean"] / 2, torch.inf)
    return out, lse


def _plan(metadata: torch.Tensor | None, problem: IncreProblem) -> tuple[PlannedCall, PreparedCall]:
    """The caller's table, or a plan for the lengths that the host knows."""
    attn = problem.attn
    if metadata is not None:
        planned = read_metadata(metadata)
        return planned, prepare_for_table(attn, planned.header)
    lengths = _host_lengths(
        attn.seqlen_q, problem.host_lengths or problem.rooms, problem.has_device_lengths
    )
    planned = plan_call(attn, lengths, attn.device, dtype_class(attn.dtype))
    return planned, prepare(attn, planned.header)


@functools.lru_cache(maxsize=64)
def _host_lengths(seqlen_q: int, kv_lens: tuple[int, ...], are_bounds: bool) -> HostLengths:
    return HostLengths(
        np.full(len(kv_lens), seqlen_q, np.int64), np.array(kv_lens, np.int64), are_bounds
    )
