"""Decode steps over a KV cache: inputs as an engine has them, and what a result must be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from fa_triton.incremental_reference import incre_flash_attention_reference
from perf.gate import MAX_ERROR_RATIO, Accuracy

PAGE_SIZE = 128
# Largest ratio of our CPU time to that of the fastest peer, by the dtype of the cache.
GOALS = {"bf16": 0.95, "int8": 0.6}


@dataclass(frozen=True)
class DecodeWorkload:
    """One query token per sequence, bf16, eight query heads per kv head.

    Attributes:
        cache: Dtype of keys and values: bf16, or int8 with scales per channel.
        batch_size: Sequences B.
        kv_len: Keys S of each.
        is_paged: Keys lie in shuffled pages, else in one tensor.
        num_heads_kv: Nkv.
        group: Query heads per kv head.
        head_dim: D.
    """

    cache: str
    batch_size: int
    kv_len: int
    is_paged: bool
    num_heads_kv: int = 2
    group: int = 8
    head_dim: int = 128

    @property
    def name(self) -> str:
        """As in results."""
        where = "paged" if self.is_paged else "contiguous"
        return f"B {self.batch_size}, S {self.kv_len}, {where}"

    @property
    def num_heads_q(self) -> int:
        """Query heads."""
        return self.group * self.num_heads_kv

    @property
    def softmax_scale(self) -> float:
        """Of the logits."""
        return 1.0 / math.sqrt(self.head_dim)

    @property
    def num_pages(self) -> int:
        """Pages of one sequence."""
        return -(-self.kv_len // PAGE_SIZE)


WORKLOADS = [
    DecodeWorkload(cache, batch_size, kv_len, is_paged)
    for cache in ("bf16", "int8")
    for batch_size in (1, 8, 64)
    for kv_len in (1024, 8192)
    for is_paged in (False, True)
]


@dataclass(frozen=True)
class DecodeInputs:
    """Tensors of a workload.

    Attributes:
        workload: What they are for.
        q: ``[B, N, 1, D]``.
        k: ``[B, Nkv, S, D]``, dtype of the cache.
        v: Likewise.
        scale: ``[2, Nkv, 1, D]`` bf16 for an int8 cache.
    """

    workload: DecodeWorkload
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: torch.Tensor | None

    @cached_property
    def pages(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys, values ``[P, Nkv, page, D]`` and their block table ``[B, pages]``."""
        w = self.workload
        count = w.batch_size * w.num_pages
        table = torch.randperm(count, generator=torch.Generator().manual_seed(1))
        pages = []
        for tensor in (self.k, self.v):
            parts = tensor.unflatten(2, (w.num_pages, PAGE_SIZE)).transpose(1, 2).flatten(0, 1)
            shuffled = torch.empty_like(parts, memory_format=torch.contiguous_format)
            shuffled[table] = parts
            pages.append(shuffled)
        return *pages, table.view(w.batch_size, w.num_pages).to(torch.int32)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``incre_flash_attention``."""
        w = self.workload
        options: dict[str, Any] = {
            "num_heads": w.num_heads_q,
            "num_key_value_heads": w.num_heads_kv,
            "scale_value": w.softmax_scale,
            "input_layout": "BNSD",
            "antiquant_scale": self.scale,
        }
        if w.is_paged:
            lengths = [w.kv_len] * w.batch_size
            options |= {
                "block_table": self.pages[2],
                "block_size": PAGE_SIZE,
                "actual_seq_lengths": lengths,
            }
        return options

    @property
    def cache_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value of the call."""
        return self.pages[:2] if self.workload.is_paged else (self.k, self.v)


def make_inputs(workload: DecodeWorkload, seed: int = 0) -> DecodeInputs:
    """Draw queries and a cache; int8 keys as a quantiser of normal keys stores them."""
    generator = torch.Generator().manual_seed(seed)
    w = workload
    q = torch.randn(w.batch_size, w.num_heads_q, 1, w.head_dim, generator=generator)
    shape = (w.batch_size, w.num_heads_kv, w.kv_len, w.head_dim)
    scale = None
    if w.cache == "int8":
        k, v = (
            (32 * torch.randn(shape, generator=generator)).round_().clamp_(-127, 127).to(torch.int8)
            for _ in range(2)
        )
        # keys of size one, some channels larger
        channels = torch.rand(2, w.num_heads_kv, 1, w.head_dim, generator=generator)
        scale = ((0.5 + channels) / 32).bfloat16()
    else:
        k, v = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    return DecodeInputs(workload, q.bfloat16(), k, v, scale)


def check(inputs: DecodeInputs, result: torch.Tensor) -> Accuracy:
    """Compare the first and the last sequence with float64, beside plain rounding."""
    w = inputs.workload
    rows = sorted({0, w.batch_size - 1})
    few = replace(w, batch_size=len(rows), is_paged=False)
    some = DecodeInputs(few, inputs.q[rows], inputs.k[rows], inputs.v[rows], inputs.scale)
    q, k, v, options = some.q, some.k, some.v, some.options
    exact, _ = incre_flash_attention_reference(q, k, v, out_dtype=torch.float64, **options)
    rounded, _ = incre_flash_attention_reference(q, k, v, emulate=True, **options)
    error = result[rows].double() - exact
    return Accuracy(
        ours=error.square().mean().sqrt().item(),
        emulation=(rounded.double() - exact).square().mean().sqrt().item(),
        max_error=error.abs().max().item(),
        limit=MAX_ERROR_RATIO,
    )
