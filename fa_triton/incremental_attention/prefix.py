"""A prefix that all sequences share: a part of its own, merged with that of the other keys.

Both parts run without sinks and stay in fp32; the sinks join the merged rows.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from fa_triton.attention.merging import merge_states
from fa_triton.incremental_attention.views import mask_view
from fa_triton.problem import NO_MASK

if TYPE_CHECKING:
    from fa_triton.incremental_problem import IncreOptions, IncreProblem

Part: TypeAlias = "tuple[torch.Tensor, torch.Tensor, IncreOptions, IncreProblem]"

_PER_KEY = ("pse_shift", "atten_mask")
_OF_OWN_KEYS = ("actual_seq_lengths", "kv_padding_size", "block_table", "metadata")


def prefix_part(
    options: IncreOptions, problem: IncreProblem, own_lengths: torch.Tensor | None
) -> Part:
    """Keys, values, options and problem of the prefix, the same memory for every sequence.

    Args:
        options: Of the call, none of them an empty tensor.
        problem: The validated call.
        own_lengths: Keys of each sequence behind the prefix ``[B]``; None: all there is room for.
    """
    attn = problem.attn
    # validation refuses one without the other
    key = cast("torch.Tensor", options.get("key_shared_prefix"))
    value = cast("torch.Tensor", options.get("value_shared_prefix"))
    # the first of several query tokens may stand before the end of the prefix
    may_hide = own_lengths is not None and attn.mask_mode != NO_MASK and attn.seqlen_q > 1
    part = _prefix_problem(problem, may_hide)
    kept = _columns(options, slice(None, problem.prefix_length))
    for name in _OF_OWN_KEYS:
        kept.pop(name, None)
    if may_hide and own_lengths is not None:
        kept["atten_mask"] = _later_keys(own_lengths, part) | _marks(kept, part)
    shape = (attn.batch_size, -1, -1, -1)
    return key.expand(shape), value.expand(shape), kept, part


def own_part(options: IncreOptions, problem: IncreProblem) -> tuple[IncreOptions, IncreProblem]:
    """Options and problem of the keys behind the prefix."""
    return _columns(options, slice(problem.prefix_length, None)), _own_problem(problem)


def merge_parts(
    prefix: tuple[torch.Tensor, torch.Tensor],
    own: tuple[torch.Tensor, torch.Tensor],
    options: IncreOptions,
    problem: IncreProblem,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result in fp32 and log-sum-exp over prefix and own keys, sinks included."""
    attn = problem.attn
    out, lse = merge_states(*prefix, *own, attn.layout_out)
    sinks = options.get("sinks")
    if sinks is None:
        return out, lse
    per_head = sinks[:, None]
    # an empty row has a log-sum-exp of +inf and is 0
    share = torch.sigmoid(lse - per_head)
    with_sink = torch.where(lse.isposinf(), per_head, torch.logaddexp(lse, per_head))
    # a sink of -inf is none: such a row stays empty
    with_sink = with_sink.masked_fill(with_sink.isneginf(), torch.inf)
    share = share if attn.layout_out == "BNSD" else share.transpose(1, 2)
    return out * share[..., None], with_sink if attn.lse_includes_sink else lse


@functools.lru_cache(maxsize=256)
def _prefix_problem(problem: IncreProblem, may_hide: bool) -> IncreProblem:
    cache = replace(problem.attn.cache, has_places=False, has_first_columns=False)
    if may_hide:
        cache = replace(cache, has_mask=True, has_mask_rows=True)
    attn = replace(
        problem.attn,
        layout_kv="BNSD",
        seqlen_kv=problem.prefix_length,
        page_size=0,
        mask_mode=NO_MASK,
        has_seqused_kv=False,
        has_sinks=False,
        return_softmax_lse=True,
        cache=cache,
    )
    return replace(
        problem,
        attn=attn,
        is_list=False,
        list_lengths=None,
        host_lengths=None,
        has_device_lengths=False,
        has_left_padding=False,
        mask_form="per_query" if may_hide else problem.mask_form,
    )


@functools.lru_cache(maxsize=256)
def _own_problem(problem: IncreProblem) -> IncreProblem:
    return replace(problem, attn=replace(problem.attn, has_sinks=False, return_softmax_lse=True))


def _later_keys(own_lengths: torch.Tensor, part: IncreProblem) -> torch.Tensor:
    """Keys of the prefix behind a query token, ``[B, 1, Sq, Sp]``: where own keys are too few."""
    attn = part.attn
    tokens = torch.arange(attn.seqlen_q, device=attn.device)
    keys = torch.arange(attn.seqlen_kv, device=attn.device)
    position = tokens + (attn.seqlen_kv - attn.seqlen_q) + own_lengths[:, None]
    return (keys > position[..., None])[:, None]


def _marks(options: IncreOptions, part: IncreProblem) -> torch.Tensor:
    """Keys that the caller's mask hides, ``[B, N, Sq, Sp]``, or a False for all."""
    mask = options.get("atten_mask")
    if mask is None:
        return torch.zeros((), dtype=torch.bool, device=part.attn.device)
    return mask_view(mask, part) != 0


def _columns(options: IncreOptions, columns: slice) -> IncreOptions:
    """Options of some keys only, without sinks."""
    cut: dict[str, object] = dict(options) | {"sinks": None}
    for name in _PER_KEY:
        tensor = cut.get(name)
        if isinstance(tensor, torch.Tensor):
            cut[name] = tensor[..., columns]
    return cast("IncreOptions", cut)
