"""Random batches over a paged cache, as an engine hands them to its backend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fa_triton.vllm.attention import LayerForm
from fa_triton.vllm.batch import AttnBatch, make_batch
from fa_triton.vllm.cache_views import CachePages, joint_pages

POISON = float("nan")


@dataclass
class Step:
    """One step of an engine: packed queries, a cache, and who owns which pages."""

    q: torch.Tensor
    cache: torch.Tensor
    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_table: torch.Tensor
    head_dim: int

    @property
    def num_tokens(self) -> int:
        return int(self.query_start_loc[-1])

    @property
    def pages(self) -> CachePages:
        return joint_pages(self.cache, self.head_dim)

    def batch(self, layer: LayerForm, **options) -> AttnBatch:
        """The batch, planned for a layer unless `forms` says otherwise."""
        form = layer.plan_form(self.cache.shape[2], self.q.dtype)
        arguments = {
            "query_start_loc": torch.from_numpy(self.query_start_loc),
            "seq_lens": torch.from_numpy(self.seq_lens),
            "block_table": self.block_table,
            "host_query_start_loc": self.query_start_loc,
            "host_seq_lens": self.seq_lens,
            "are_bounds": False,
            "num_tokens": self.num_tokens,
            "forms": [form],
        }
        return make_batch(**(arguments | options))

    def keys(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[S, Nkv, D]`` of one sequence, gathered token by token."""
        page = self.cache.shape[2]
        rows = [
            self.cache[int(self.block_table[sequence, n // page]), :, n % page]
            for n in range(int(self.seq_lens[sequence]))
        ]
        joint = torch.stack(rows)
        return joint[..., : self.head_dim], joint[..., self.head_dim :]


def make_step(
    lengths: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    head_dim_v: int | None = None,
    page: int = 32,
    dtype: torch.dtype = torch.float32,
    padding: int = 0,
    head_major: bool = True,
    seed: int = 0,
) -> Step:
    """Make a step of sequences with (query tokens, keys); all that no sequence uses is NaN."""
    generator = torch.Generator().manual_seed(seed)
    heads_q, heads_kv = heads
    columns = head_dim + (head_dim_v or head_dim)
    needed = [-(-keys // page) for _, keys in lengths]
    num_pages = sum(needed) + 3
    shape = (num_pages, heads_kv, page, columns)
    cache = torch.full(shape, POISON, dtype=dtype)
    if not head_major:
        cache = torch.full((num_pages, page, heads_kv, columns), POISON, dtype=dtype)
        cache = cache.transpose(1, 2)
    order = torch.randperm(num_pages, generator=generator)[: sum(needed)]
    table = torch.full((len(lengths), max(needed) + 2), 2**31 - 1, dtype=torch.int32)
    for b, own in enumerate(order.split(needed)):
        table[b, : len(own)] = own
        for n in range(lengths[b][1]):
            row = torch.randn(heads_kv, columns, generator=generator)
            cache[own[n // page], :, n % page] = row.to(dtype)
    starts = np.cumsum([0, *(tokens for tokens, _ in lengths)]).astype(np.int32)
    q = torch.randn(int(starts[-1]) + padding, heads_q, head_dim, generator=generator).to(dtype)
    keys = np.array([keys for _, keys in lengths], dtype=np.int32)
    return Step(q, cache, starts, keys, table, head_dim)


def attend_in_float64(
    step: Step,
    layer: LayerForm,
    *,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    is_causal: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result ``[T, Nq, Dv]`` and log-sum-exp ``[Nq, T]`` by the definition, sequence by sequence.

    A window of W keys counts the own one, as vLLM's ``sliding_window`` does.
    """
    outs, sums = [], []
    for b in range(len(step.seq_lens)):
        first, last = step.query_start_loc[b : b + 2]
        k, v = (t.double().repeat_interleave(layer.num_heads_q // layer.num_heads_kv, 1)
                for t in step.keys(b))  # fmt: skip
        q = step.q[first:last].double()
        keys = len(k)
        own = torch.arange(keys - len(q), keys)[:, None]
        distance = own - torch.arange(keys)[None]
        logits = torch.einsum("qhd,khd->hqk", q, k) * layer.softmax_scale
        if layer.softcap:
            logits = layer.softcap * torch.tanh(logits / layer.softcap)
        if alibi_slopes is not None:
            logits = logits - alibi_slopes.double()[:, None, None] * distance.abs()
        hidden = distance < 0 if is_causal else torch.zeros_like(distance, dtype=torch.bool)
        if layer.win_left >= 0:
            hidden = hidden | (distance > layer.win_left)
        logits = logits.masked_fill(hidden, -torch.inf)
        joined = logits
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, len(q), 1)
            joined = torch.cat([logits, column], -1)
        weights = joined.softmax(-1)[..., :keys]
        outs.append(torch.einsum("hqk,khd->qhd", weights, v))
        sums.append(logits.logsumexp(-1))
    return torch.cat(outs), torch.cat(sums, 1)
