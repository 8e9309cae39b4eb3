"""A cache of eight bits: views, quantising update, attention, against float64."""

from __future__ import annotations

import pytest
import torch

from fa_triton.vllm.attention import LayerForm, attend_batch
from fa_triton.vllm.cache_update import update_by_reference, update_cache
from fa_triton.vllm.cache_views import int8_content_bytes, int8_pages
from tests.vllm_adapter.batches import attend_in_float64, make_step

pytestmark = pytest.mark.slow

PAGES, PAGE, HEADS = 5, 32, 2


def empty_cache(head_dim=64, head_dim_v=None, pages=PAGES, page=PAGE, heads=HEADS):
    content = int8_content_bytes(head_dim, head_dim_v or head_dim)
    return torch.full((pages, heads, page, content), 85, dtype=torch.int8)


def test_views_cover_every_byte_once():
    cache = torch.zeros_like(empty_cache(64, 32))
    views = int8_pages(cache, 64)
    assert views.k.shape[-1] == 64
    assert views.v.shape[-1] == 32
    views.k.fill_(1)
    views.v.fill_(2)
    views.scales.view(torch.int32).fill_(0x03030303)
    counts = torch.bincount(cache.flatten().long())
    tokens = PAGES * HEADS * PAGE
    assert counts.tolist() == [0, 64 * tokens, 32 * tokens, 8 * tokens]


def test_bad_views():
    with pytest.raises(ValueError, match="must be int8"):
        int8_pages(torch.zeros(2, 2, 32, 136), 64)
    apart = torch.zeros(2, 32, 2, 136, dtype=torch.int8).transpose(1, 2)
    with pytest.raises(ValueError, match="must lie side by side"):
        int8_pages(apart, 64)
    with pytest.raises(ValueError, match="multiples of 4 bytes"):
        int8_pages(torch.zeros(2, 2, 33, 66 + 65 + 8, dtype=torch.int8), 65)


@pytest.mark.parametrize(
    ("head_dim", "heads", "dtype"),
    [(64, 2, torch.bfloat16), (80, 3, torch.float16), (128, 40, torch.bfloat16)],
)
def test_update(head_dim, heads, dtype):
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 20, heads, head_dim, generator=generator).to(dtype)
    key[4] = 0
    slots = torch.randperm(PAGES * PAGE, generator=generator)[:20]
    slots[3] = -1
    cache = empty_cache(head_dim, heads=heads)
    expected = cache.clone()
    update_by_reference(key, value, int8_pages(expected, head_dim), slots)
    update_cache(key, value, int8_pages(cache, head_dim), slots)
    ours, theirs = int8_pages(cache, head_dim), int8_pages(expected, head_dim)
    torch.testing.assert_close(ours.scales, theirs.scales, rtol=1e-6, atol=0)
    for mine, other in ((ours.k, theirs.k), (ours.v, theirs.v)):
        # a quotient at half an integer may round either way
        assert (mine.int() - other.int()).abs().max() <= 1
        assert (mine != other).float().mean() < 1e-3
    untouched = torch.ones(PAGES * PAGE, dtype=torch.bool)
    untouched[slots[slots >= 0]] = False
    rows = ours.k.transpose(1, 2).reshape(PAGES * PAGE, -1)
    assert (rows[untouched] == 85).all()


@pytest.mark.parametrize(
    "lengths", [[(1, 5), (1, 90)], [(20, 50), (7, 7)], [(1, 33), (16, 80)], [(3, 60), (3, 3)]]
)
@pytest.mark.parametrize("options", [{}, {"win_left": 20, "softcap": 3.0}])
def test_attention(lengths, options):
    step = make_step(lengths, dtype=torch.bfloat16)
    layer = LayerForm(num_heads_q=4, num_heads_kv=2, head_dim=64, softmax_scale=0.125, **options)
    cache = empty_cache(pages=step.cache.shape[0])
    pages = int8_pages(cache, 64)
    pages.scales.fill_(torch.nan)
    for b, keys in enumerate(step.seq_lens):
        k, v = step.keys(b)
        places = torch.arange(int(keys))
        slots = step.block_table[b, places // PAGE] * PAGE + places % PAGE
        update_cache(k, v, pages, slots.long())
    # what the cache holds now is what float64 attends to
    k, v = (
        (side * scale[..., None]).to(torch.float32)
        for side, scale in zip((pages.k, pages.v), pages.scales, strict=True)
    )
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    out = torch.full_like(step.q, torch.nan)
    lse = torch.full((4, step.num_tokens), torch.nan)
    attend_batch(layer, step.batch(layer), step.q, pages, out, sinks=sinks, lse=lse)
    step.cache = torch.cat([k, v], -1)
    expected, sums = attend_in_float64(step, layer, sinks=sinks)
    torch.testing.assert_close(out.double(), expected, atol=1.6e-2, rtol=1.6e-2)
    torch.testing.assert_close(lse.double(), sums, atol=5e-3, rtol=5e-3)


def test_slopes(monkeypatch):
    step = make_step([(1, 40), (9, 20)], dtype=torch.float16)
    layer = LayerForm(num_heads_q=4, num_heads_kv=2, head_dim=64, softmax_scale=0.125)
    pages = int8_pages(empty_cache(pages=step.cache.shape[0]), 64)
    pages.scales.fill_(0.01)
    slopes = torch.tensor([0.1, 0.2, 0.4, 0.8])
    ours, reference = torch.full_like(step.q, torch.nan), torch.full_like(step.q, torch.nan)
    attend_batch(layer, step.batch(layer), step.q, pages, ours, alibi_slopes=slopes)
    monkeypatch.setenv("FA_TRITON_CPU", "reference")
    attend_batch(layer, step.batch(layer), step.q, pages, reference, alibi_slopes=slopes)
    torch.testing.assert_close(ours, reference, atol=2e-3, rtol=2e-3)


def test_refusals():
    step = make_step([(1, 40)])
    layer = LayerForm(num_heads_q=4, num_heads_kv=2, head_dim=64, softmax_scale=0.125)
    pages = int8_pages(empty_cache(), 64)
    with pytest.raises(TypeError, match="fp16 or bf16 with a cache of eight bits"):
        attend_batch(layer, step.batch(layer), step.q, pages, torch.empty_like(step.q))
    key = torch.randn(3, HEADS, 64)
    bare = type(pages)(pages.k, pages.v)
    with pytest.raises(TypeError, match="must have scales if they are int8"):
        update_cache(key, key, bare, torch.arange(3))
