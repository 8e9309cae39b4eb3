"""The vector-only decode kernel: it computes attention, and compiles for every Ascend device."""

from __future__ import annotations

import pytest
import torch

from fa_triton.compile.variant import compile_variant
from fa_triton.launch import runner
from perf.model.candidates.vector_form import TILES, vector_variant

# one tile per head dim: the model compiles the others
FORMS = [(dim, tiles[1]) for dim, tiles in TILES.items()]


@pytest.mark.forked
@pytest.mark.parametrize(("dim", "block_kv"), [(64, 128), (128, 32)])
def test_it_is_attention(dim, block_kv, nan_filled_memory):
    from perf.model.candidates.vector_decode import vector_decode

    torch.manual_seed(0)
    lengths = torch.tensor([300, 1, 97], dtype=torch.int32)
    batch, heads, longest = len(lengths), 2, 300
    q = torch.randn(batch, heads, dim, dtype=torch.bfloat16)
    k, v = torch.randn(2, batch, longest, heads, dim, dtype=torch.bfloat16)
    for b, length in enumerate(lengths):
        k[b, length:] = v[b, length:] = float("nan")
    out, lse = torch.empty_like(q), torch.empty(batch, heads)
    scale = dim**-0.5
    runner(vector_decode)[(2,)](
        q,
        k,
        v,
        lengths,
        out,
        lse,
        batch * heads,
        heads,
        scale,
        *q.stride()[:2],
        *(k.stride(0), k.stride(2), k.stride(1)),
        *(v.stride(0), v.stride(2), v.stride(1)),
        D=dim,
        BLOCK_KV=block_kv,
    )
    for b, length in enumerate(lengths):
        keys, values = (x[b, :length].double() for x in (k, v))
        logits = torch.einsum("hd,shd->hs", q[b].double(), keys) * scale
        exact = torch.einsum("hs,shd->hd", logits.softmax(1), values)
        # fp32 all the way, rounded once
        assert torch.equal(out[b], exact.bfloat16()) or torch.allclose(
            out[b].double(), exact, rtol=2**-8, atol=1e-6
        )
        torch.testing.assert_close(lse[b].double(), logits.logsumexp(1), rtol=0, atol=2e-6)


@pytest.mark.compile
@pytest.mark.parametrize("target", ["A2", "A3", "A5"])
@pytest.mark.parametrize(("dim", "block_kv"), FORMS)
def test_it_compiles_for(target, dim, block_kv):
    result = compile_variant(vector_variant(dim, block_kv), target)
    assert result.ok, result.mismatches
    assert result.report.core == "aiv"
