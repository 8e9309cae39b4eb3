"""Attention to a shared prefix (cascade): two calls and a merge instead of the prefix B times.

The queries of all sequences are one sequence for the prefix, whose keys are read once. Each then
attends to the keys of its own, and the two results are merged.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn, merge_attn_states
from fa_triton.reference import flash_attn_reference
from tests.flash_attn.batches import starts
from tests.flash_attn.paging import Paging

HEADS_Q, HEADS_KV, DIM = 8, 2, 64
PREFIX = 150
PAGING = Paging("PA_BBND", 16)
PACKED = {"layout_q": "TND", "layout_out": "TND", "softmax_scale": DIM**-0.5}


def with_shared_prefix(
    q: torch.Tensor,
    prefix: dict[str, Any],
    own: dict[str, Any],
    cu_seqlens_q: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend all queries to the prefix, each sequence to its own keys, and merge."""
    everything = torch.tensor([0, len(q)], dtype=torch.int32)
    common = {**PACKED, "return_softmax_lse": True}
    to_prefix = flash_attn(q, **prefix, cu_seqlens_q=everything, **common)
    # the last query of a sequence sees its last key, so its own keys carry the causal mask
    to_own = flash_attn(q, **own, cu_seqlens_q=cu_seqlens_q, mask_mode=3, **common)
    return merge_attn_states(*to_prefix, *to_own)


@pytest.mark.parametrize(
    ("q_lens", "own_lens"),
    [((1, 1, 1, 1), (40, 1, 17, 200)), ((1, 9, 3, 20), (1, 9, 60, 31))],
    ids=["decode", "mixed"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_shared_prefix(
    q_lens: tuple[int, ...], own_lens: tuple[int, ...], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(5)

    def random(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, DIM, generator=generator).to(dtype)

    q, cu_q = random(sum(q_lens), HEADS_Q), starts(q_lens)
    prefix_k, prefix_v = random(PREFIX, HEADS_KV), random(PREFIX, HEADS_KV)
    own_k, own_v = ([random(length, HEADS_KV) for length in own_lens] for _ in range(2))

    prefix_table = PAGING.table((PREFIX,), (PREFIX,), generator)
    prefix = {
        "k": PAGING.cache([prefix_k], prefix_table),
        "v": PAGING.cache([prefix_v], prefix_table),
        "block_table": prefix_table,
        "seqused_kv": torch.tensor([PREFIX], dtype=torch.int32),
        "layout_kv": PAGING.layout,
    }
    own_table = PAGING.table(own_lens, own_lens, generator)
    own = {
        "k": PAGING.cache(own_k, own_table),
        "v": PAGING.cache(own_v, own_table),
        "block_table": own_table,
        "seqused_kv": torch.tensor(own_lens, dtype=torch.int32),
        "layout_kv": PAGING.layout,
    }
    out, lse = with_shared_prefix(q, prefix, own, cu_q)

    k, v = (
        torch.cat([torch.cat([shared, own]) for own in parts])
        for shared, parts in ((prefix_k, own_k), (prefix_v, own_v))
    )
    wanted, wanted_lse = flash_attn_reference(
        q,
        k,
        v,
        cu_seqlens_q=cu_q,
        cu_seqlens_kv=starts(tuple(PREFIX + length for length in own_lens)),
        layout_kv="TND",
        mask_mode=3,
        return_softmax_lse=True,
        out_dtype=torch.float64,
        **PACKED,
    )
    # each part was rounded to the dtype once, and so was the merge
    step = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), wanted, atol=4 * step, rtol=step)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-5, rtol=1e-6)
