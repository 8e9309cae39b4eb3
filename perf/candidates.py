"""What is timed: our operator and, for each workload, every form of torch's SDPA that does the job.

A peer gets its inputs in the layout that suits it best, prepared outside the timed call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from perf.shapes import Tensors, Workload

Call = Callable[[], torch.Tensor]


def our_options(workload: Workload, tensors: Tensors) -> dict[str, Any]:
    """Return the keyword arguments of ``flash_attn`` for a workload."""
    layout = "TND" if workload.packed else "BNSD"
    options: dict[str, Any] = {
        "softmax_scale": 1.0 / math.sqrt(workload.head_dim),
        "mask_mode": 3 if workload.causal else 0,
        "layout_q": layout,
        "layout_kv": layout,
        "layout_out": layout,
    }
    if workload.packed:
        options |= {
            "cu_seqlens_q": tensors.cu_seqlens_q,
            "cu_seqlens_kv": tensors.cu_seqlens_kv,
            "max_seqlen_q": max(workload.q_lens),
            "max_seqlen_kv": max(workload.kv_lens),
        }
    return options


def ours(workload: Workload, tensors: Tensors) -> Call:
    """Return a call of ``flash_attn`` with the plan inside, as a user has it."""
    from fa_triton import flash_attn

    options = our_options(workload, tensors)
    return lambda: flash_attn(tensors.q, tensors.k, tensors.v, **options)[0]


def peers(workload: Workload, tensors: Tensors) -> dict[str, Call]:
    """Return torch's ways to compute the workload, by name."""
    if workload.packed:
        return {
            "sdpa per sequence": _sdpa_per_sequence(workload, tensors),
            "sdpa padded": _sdpa_padded(workload, tensors),
        }
    q, k, v = tensors.q, tensors.k, tensors.v
    if workload.group == 1:
        return {"sdpa": partial(sdpa, q, k, v, is_causal=workload.causal)}
    calls: dict[str, Call] = {
        "sdpa enable_gqa": partial(sdpa, q, k, v, is_causal=workload.causal, enable_gqa=True)
    }
    if workload.q_lens[0] == 1:
        # The group of query heads becomes the rows of one kv head: no key is read twice.
        folded = q.reshape(workload.batch_size, workload.num_heads_kv, workload.group, -1)
        calls["sdpa group as rows"] = lambda: sdpa(folded, k, v).reshape(q.shape)
    return calls


def _sequences(x: torch.Tensor, lengths: tuple[int, ...]) -> list[torch.Tensor]:
    """Cut ``[T, N, D]`` into views ``[1, N, S, D]``."""
    return [part.transpose(0, 1)[None] for part in x.split(lengths)]


def _sdpa_per_sequence(workload: Workload, tensors: Tensors) -> Call:
    q = _sequences(tensors.q, workload.q_lens)
    k = _sequences(tensors.k, workload.kv_lens)
    v = _sequences(tensors.v, workload.kv_lens)
    out = torch.empty_like(tensors.q)
    places = _sequences(out, workload.q_lens)

    def call() -> torch.Tensor:
        for b_q, b_k, b_v, place in zip(q, k, v, places, strict=True):
            place.copy_(sdpa(b_q, b_k, b_v, is_causal=workload.causal))
        return out

    return call


def _sdpa_padded(workload: Workload, tensors: Tensors) -> Call:
    """Padding at the end is hidden from real rows by the causal mask; it is not timed."""
    if not workload.causal or workload.q_lens != workload.kv_lens:
        raise NotImplementedError("`workload` must be causal with equal lengths to be padded")

    def padded(x: torch.Tensor) -> torch.Tensor:
        parts = list(x.split(workload.q_lens))
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).transpose(1, 2).contiguous()

    q, k, v = padded(tensors.q), padded(tensors.k), padded(tensors.v)
    starts = range(0, len(workload.q_lens) * q.shape[2], q.shape[2])
    real = [torch.arange(n) + at for n, at in zip(workload.q_lens, starts, strict=True)]
    rows = torch.cat(real)

    def call() -> torch.Tensor:
        out = sdpa(q, k, v, is_causal=True).transpose(1, 2)
        return out.reshape(-1, *out.shape[2:])[rows]

    return call
