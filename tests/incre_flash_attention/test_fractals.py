"""Caches in fractals that are copied to rows first, as on A2 and A3; here on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import incre_flash_attention
from tests.incre_flash_attention.accuracy import assert_accurate
from tests.incre_flash_attention.batches import IncreBatch

pytestmark = pytest.mark.usefixtures("nan_filled_memory")

CACHE = IncreBatch((140, 7, 0, 64), heads=(4, 2), cache="PA_NZ", page_size=32, head_dim=48)
QUANTS = ("per_tensor", "per_channel", "per_token", "per_token_head")
BATCHES = {
    "16 bits": CACHE,
    "pages of 16": CACHE.but(page_size=16, lengths="device"),
    "pages of 1024": CACHE.but(page_size=1024, kv_lens=(1030, 5)),
    "tokens, mask and bias": CACHE.but(tokens=3, mask="tree", bias="tokens"),
    "shared prefix": CACHE.but(prefix=17, has_sinks=True),
    "window": CACHE.but(tokens=2, lengths="device64", options={"win_left": 20}),
    "D 512": CACHE.but(head_dim=512, dtype=torch.bfloat16),
    "result in int8": CACHE.but(output_quant="channel"),
    **{quant: CACHE.but(quant=quant) for quant in QUANTS},
    **{f"{q}, offsets": CACHE.but(quant=q, has_offset=True, lengths="device") for q in QUANTS},
    "int8, D 512": CACHE.but(quant="per_token", has_offset=True, head_dim=512),
    "int8, pages of 96": CACHE.but(quant="per_token_head", page_size=96, tokens=2),
}


def in_a_large_cache(batch: IncreBatch) -> dict[str, Any]:
    """Arguments of a call whose cache has more pages than its block table has entries."""
    call = batch.call()
    spare = call["block_table"].numel()

    def grown(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        last = tensor.narrow(axis, 0, 1)
        poison = torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
        pages = torch.full_like(last, poison).repeat_interleave(spare, axis)
        return torch.cat([tensor, pages], axis)

    for name in ("key", "value"):
        call[name] = grown(call[name], 0)
    if batch.quant in ("per_token", "per_token_head"):
        for name in ("antiquant_scale", "antiquant_offset"):
            if call.get(name) is not None:
                call[name] = grown(call[name], 1)
    return call


@pytest.mark.parametrize("has_own_table", [False, True], ids=["ids", "own table"])
@pytest.mark.parametrize("name", BATCHES)
def test_copies(request: pytest.FixtureRequest, name: str, has_own_table: bool) -> None:
    """The budget against float64, and next to the bits of loads from fractals."""
    batch = BATCHES[name]
    call = in_a_large_cache(batch) if has_own_table else batch.call()
    if not has_own_table:
        # a table that is wider than the cache
        table = call["block_table"]
        rubbish = torch.full((len(table), len(call["key"])), -1, dtype=torch.int32)
        call["block_table"] = torch.cat([table, rubbish], 1)
    call |= {"return_softmax_lse": True}
    loaded = incre_flash_attention(**call)
    copies = request.getfixturevalue("copies_of_fractals")
    out, lse = incre_flash_attention(**call)
    assert copies == [has_own_table]
    assert_accurate(out, lse, call)
    off = 1 if out.dtype == torch.int8 else 2e-2 if out.dtype == torch.bfloat16 else 2e-3
    torch.testing.assert_close(out.float(), loaded[0].float(), atol=off, rtol=off)
    torch.testing.assert_close(lse, loaded[1], atol=1e-3, rtol=1e-3)
