"""What a decode step is timed against: every form of torch's SDPA that does the job.

A peer gets contiguous keys even where ours reads pages: what gathering them costs is on record but
not part of the ratio. So is a form for scales per channel alone, which casts an int8 cache without
scaling it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from perf.decode_workloads import DecodeInputs

Call = Callable[[], torch.Tensor]


def peers(inputs: DecodeInputs) -> dict[str, Call]:
    """Return the forms by name; an int8 cache is dequantised in the timed call."""
    k, v, scale = inputs.k, inputs.v, inputs.scale
    if scale is None:
        return {
            "sdpa enable_gqa": partial(_by_gqa, inputs, k, v),
            "sdpa group as rows": partial(_as_rows, inputs, k, v),
        }
    return {
        "dequantise + sdpa enable_gqa": lambda: _by_gqa(inputs, *_dequantised(inputs, scale)),
        "dequantise + sdpa group as rows": lambda: _as_rows(inputs, *_dequantised(inputs, scale)),
    }


def on_record(inputs: DecodeInputs) -> dict[str, Call]:
    """Return what is timed beside the peers, by name."""
    calls: dict[str, Call] = {}
    scale = inputs.scale
    if scale is not None:
        calls["cast + sdpa, scales on q and out"] = lambda: _scaled_outside(inputs, scale)
    if inputs.workload.is_paged:
        calls["gather of pages"] = _gather(inputs)
    return calls


def _gather(inputs: DecodeInputs) -> Call:
    """What SDPA would need before it can attend over pages."""
    keys, values, table = inputs.pages
    heads, dim = inputs.k.shape[1], inputs.k.shape[3]

    def call() -> torch.Tensor:
        for pages in (keys, values):
            rows = pages[table.flatten()].unflatten(0, table.shape)
            gathered = rows.transpose(1, 2).reshape(len(table), heads, -1, dim)
        return gathered

    return call


def _by_gqa(inputs: DecodeInputs, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return sdpa(inputs.q, k, v, enable_gqa=True, scale=inputs.workload.softmax_scale)


def _as_rows(
    inputs: DecodeInputs, k: torch.Tensor, v: torch.Tensor, q: torch.Tensor | None = None
) -> torch.Tensor:
    """The group of query heads becomes the rows of one kv head: no key is read twice."""
    w = inputs.workload
    rows = (inputs.q if q is None else q).view(w.batch_size, w.num_heads_kv, w.group, w.head_dim)
    return sdpa(rows, k, v, scale=w.softmax_scale).view(inputs.q.shape)


def _dequantised(inputs: DecodeInputs, scale: torch.Tensor) -> list[torch.Tensor]:
    caches = (inputs.k, inputs.v)
    return [cache.to(inputs.q.dtype).mul_(s) for cache, s in zip(caches, scale, strict=True)]


def _scaled_outside(inputs: DecodeInputs, scale: torch.Tensor) -> torch.Tensor:
    """Scales per channel join q and the result, so that the cache is only cast."""
    w = inputs.workload
    k_scale, v_scale = (s.repeat_interleave(w.group, 0) for s in scale)
    k, v = (cache.to(inputs.q.dtype) for cache in (inputs.k, inputs.v))
    return _as_rows(inputs, k, v, inputs.q * k_scale) * v_scale
