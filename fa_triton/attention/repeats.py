"""Calls that differ from an earlier one in nothing but addresses: launched without new arguments.

Decode makes the same call in every layer and step. On the CPU, where a launch costs as much as the
attention of a short sequence, its arguments are kept and only the pointers are exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fa_triton.attention.operands import scale_operands
from fa_triton.attention.rows import RowKind

if TYPE_CHECKING:
    from fa_triton.attention.kernels import (
        CacheTensors,
        HeadTensors,
        KeyTensors,
        Lengths,
        Workspace,
    )
    from fa_triton.attention.prepared import PreparedCall
    from fa_triton.native.kernel import BoundLaunch

_KEPT_CALLS = 512


@dataclass(frozen=True, eq=False)
class Repeat:
    """A launch and what it needs to live: its key has the call's identity.

    Attributes:
        call: The prepared call.
        launch: The launch of the forward kernel, which is all there is.
        work: Workspace, which nothing is written to.
    """

    call: PreparedCall
    launch: BoundLaunch
    work: Workspace


_kept: dict[tuple[object, ...], Repeat] = {}


def repeat_key(
    q: torch.Tensor,
    keys: KeyTensors,
    heads: HeadTensors,
    lengths: Lengths,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    call: PreparedCall,
    cache: CacheTensors | None,
) -> tuple[object, ...] | None:
    """What decides about the arguments of a launch besides addresses.

    Returns:
        The key; None for calls that do more than one launch: on other devices, with cut or packed
        rows, with values per head, or with inputs per key that views are made of.
    """
    if not q.is_cpu or call.header.is_fd or call.units.kind is RowKind.PACKED:
        return None
    if heads.sinks is not None or heads.alibi_slopes is not None:
        return None
    scale = offset = None
    if cache is not None:
        if (
            cache.places is not None
            or cache.first_columns is not None
            or cache.bias is not None
            or cache.key_mask is not None
        ):
            return None
        scale, offset = cache.scale, cache.offset
    table = keys.block_table
    return (
        id(call),
        q.stride(),
        keys.k.stride(),
        keys.v.stride(),
        None if table is None else table.stride(0),
        out.dtype,
        out.stride(),
        None if lse is None else lse.stride(),
        lengths.cu_seqlens_q is None,
        lengths.cu_seqlens_kv is None,
        lengths.seqused_q is None,
        lengths.seqused_kv is None,
        None if scale is None else scale.stride(),
        offset is None,
    )


def keep(
    key: tuple[object, ...], call: PreparedCall, launch: BoundLaunch | None, work: Workspace
) -> Repeat | None:
    """Keep a launch that was made; None where launches cannot be kept."""
    if launch is None:
        return None
    if len(_kept) >= _KEPT_CALLS:
        _kept.clear()
    repeat = _kept[key] = Repeat(call, launch, work)
    return repeat


def launch_again(
    key: tuple[object, ...],
    q: torch.Tensor,
    keys: KeyTensors,
    lengths: Lengths,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    table: torch.Tensor,
    cache: CacheTensors | None,
) -> Repeat | None:
    """Repeat a kept launch with the tensors of this call.

    Returns:
        What was launched; None for a call that is not kept, or whose tensors are aligned otherwise.
    """
    repeat = _kept.get(key)
    if repeat is None:
        return None
    if repeat.call.needs_fill:
        out.zero_()
        if lse is not None:
            lse.fill_(torch.inf)
    tensors = {
        "q": q,
        "k": keys.k,
        "v": keys.v,
        "block_table": keys.block_table,
        "cu_seqlens_q": lengths.cu_seqlens_q,
        "cu_seqlens_kv": lengths.cu_seqlens_kv,
        "seqused_q": lengths.seqused_q,
        "seqused_kv": lengths.seqused_kv,
        "out": out,
        "softmax_lse": lse,
        "plan": table,
        "part_acc": repeat.work.acc,
        "part_max": repeat.work.max,
        "part_sum": repeat.work.sum,
    }
    if cache is not None:
        tensors |= scale_operands(cache.scale, cache.offset)
    addresses = {name: each.data_ptr() for name, each in tensors.items() if each is not None}
    return repeat if repeat.launch.launch(addresses) else None
