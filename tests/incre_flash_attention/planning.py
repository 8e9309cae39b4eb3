"""A plan for a call, in the planner's words."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton import flash_attn_metadata
from fa_triton.validation.masks import as_width
from tests.incre_flash_attention.batches import IncreBatch


def plan_for(batch: IncreBatch, longest: int, **options: Any) -> torch.Tensor:
    """Table for all key lengths up to ``longest``, made from host integers alone."""
    rows = "BNSD" if batch.layout == "BNSD" else "BSND"
    layouts = {"layout_q": rows, "layout_kv": rows, "layout_out": rows}
    if batch.cache.startswith("PA"):
        layouts |= {"layout_kv": batch.cache, "page_size": batch.page_size}
    # several tokens are causal, but for a mask with a row for each
    is_causal = batch.tokens > 1 and "tree" not in batch.mask
    mask: dict[str, int] = {"mask_mode": 3 if is_causal else 0}
    left = as_width(batch.options.get("win_left", -1))
    if left >= 0:
        mask = {"mask_mode": 4, "win_left": left, "win_right": 0 if is_causal else -1}
    return flash_attn_metadata(
        *batch.heads,
        batch.head_dim,
        batch_size=batch.batch_size,
        max_seqlen_q=batch.tokens,
        max_seqlen_kv=longest,
        **mask | layouts | options,
    )
