"""A prefix that all sequences share: a part of its own, merged with that of the other keys.

Both parts run without sinks and stay in fp32; the sinks join the merged rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import torch

from fa_triton.attention.merging import merge_states
from fa_triton.incremental_attention.views import mask_view
from fa_triton.problem import NO_MASK

if TYPE_CHECKING:
    from fa_triton.incremental_problem import IncreOptions, IncreProblem

Part: TypeAlias = "tuple[torch.Tensor, torch.Tensor, IncreOptions, IncreProblem]"

_PER_KEY = ("pse_shift", "atten_mask")


def prefix_part(
    options: IncreOptions, problem: IncreProblem, own_lengths: torch.Tensor | None
) -> Part:
    """Keys, values, options and problem of the prefix, the same memory for every sequence.

    Args:
        options: Of the call.
        problem: The validated call.
        own_lengths: Keys of each sequence behind the prefix ``[B]``; None: all there is room for.
    """
    length = problem.prefix_length
    key, value = (
        options[name].expand(problem.attn.batch_size, -1, -1, -1)
        for name in ("key_shared_prefix", "value_shared_prefix")
    )
    cache = replace(problem.attn.cache, has_places=False, has_first_columns=False)
    attn = replace(
        problem.attn,
        layout_kv="BNSD",
        seqlen_kv=length,
        page_size=0,
        mask_mode=NO_MASK,
        has_seqused_kv=False,
        cache=cache,
    )
    part = replace(
        problem,
        attn=attn,
        is_list=False,
        list_lengths=None,
        host_lengths=None,
        has_device_lengths=False,
        has_left_padding=False,
    )
    dropped = ("actual_seq_lengths", "kv_padding_size", "block_table", "metadata")
    kept = {name: value for name, value in options.items() if name not in dropped}
    kept = _columns(kept, slice(None, length))
    if own_lengths is not None and problem.attn.mask_mode != NO_MASK and attn.seqlen_q > 1:
        kept["atten_mask"] = _later_keys(own_lengths, part) | _marks(kept, part)
        cache = replace(cache, has_mask=True, has_mask_rows=True)
        part = replace(part, mask_form="per_query", attn=replace(attn, cache=cache))
    return key, value, *_without_sinks(kept, part)


def own_part(options: IncreOptions, problem: IncreProblem) -> tuple[IncreOptions, IncreProblem]:
    """Options and problem of the keys behind the prefix."""
    return _without_sinks(_columns(dict(options), slice(problem.prefix_length, None)), problem)


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
    share = share if attn.layout_out == "BNSD" else share.transpose(1, 2)
    return out * share[..., None], with_sink if attn.lse_includes_sink else lse


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
    if mask is None or not mask.numel():
        return torch.zeros((), dtype=torch.bool, device=part.attn.device)
    return mask_view(mask, part) != 0


def _columns(options: dict, columns: slice) -> IncreOptions:
    """Masks and biases of some columns only."""
    for name in _PER_KEY:
        tensor = options.get(name)
        if tensor is not None and tensor.numel():
            options[name] = tensor[..., columns]
    return options


def _without_sinks(
    options: IncreOptions, problem: IncreProblem
) -> tuple[IncreOptions, IncreProblem]:
    attn = replace(problem.attn, has_sinks=False, return_softmax_lse=True)
    return {**options, "sinks": None}, replace(problem, attn=attn)
