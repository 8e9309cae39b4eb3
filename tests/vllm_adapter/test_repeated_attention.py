"""Attention that repeats a kept launch: only calls that are alike in all but addresses do."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fa_triton.vllm import attention
from fa_triton.vllm.attention import LayerForm, attend_batch
from fa_triton.vllm.cache_update import update_cache
from fa_triton.vllm.cache_views import int8_pages, joint_pages
from tests.vllm_adapter.batches import attend_in_float64, make_step

pytestmark = pytest.mark.slow

DECODE = [(1, 5), (1, 33), (1, 64), (1, 100)]
LAYER = LayerForm(num_heads_q=4, num_heads_kv=2, head_dim=64, softmax_scale=0.125)
STEP = make_step(DECODE)
LIMIT = {torch.float32: 2e-6, torch.float16: 2e-3}


def check(batch, step=STEP, layer=LAYER, *, q=None, out=None, lse=None, **heads):
    """Attend to what ``step`` holds and compare with float64."""
    q = step.q if q is None else q
    out = torch.empty_like(q) if out is None else out
    out.fill_(torch.nan)
    attend_batch(layer, batch, q, step.pages, out, lse=lse, **heads)
    rounded = dataclasses.replace(step, q=q)
    expected, sums = attend_in_float64(rounded, layer, **heads)
    limit = LIMIT[out.dtype]
    torch.testing.assert_close(out.double(), expected, atol=limit, rtol=limit)
    if lse is not None:
        torch.testing.assert_close(lse.double(), sums, atol=1e-4, rtol=1e-4)


def rows(width=4, steps=1, dtype=torch.float32):
    """Rows of queries or results at strides of ``width`` heads, of which every ``steps``-th."""
    wide = torch.randn(STEP.num_tokens, width * steps, 64, dtype=dtype)
    return wide[:, ::steps][:, :4]


def other_cache(**options):
    return make_step(DECODE, **options)


def more_pages():
    step = other_cache()
    return dataclasses.replace(step, cache=torch.cat([step.cache, step.cache]))


def lse_of(width=STEP.num_tokens):
    return torch.empty(4, width)[:, : STEP.num_tokens]


OTHERS = {
    "strides of queries": lambda: {"q": rows(9)},
    "strides of heads": lambda: {"q": rows(4, steps=2)},
    "strides of the result": lambda: {"out": rows(9)},
    "strides of heads of the result": lambda: {"out": rows(4, steps=2)},
    "dtype of the result": lambda: {"out": rows(dtype=torch.float16)},
    "log-sum-exp": lambda: {"lse": lse_of()},
    "strides of the cache": lambda: {"step": other_cache(head_major=False)},
    "more pages": lambda: {"step": more_pages()},
    "scale": lambda: {"layer": dataclasses.replace(LAYER, softmax_scale=0.3)},
    "soft cap": lambda: {"layer": dataclasses.replace(LAYER, softcap=0.7)},
    "window": lambda: {"layer": dataclasses.replace(LAYER, win_left=6)},
    "sinks": lambda: {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "slopes": lambda: {"alibi_slopes": torch.tensor([0.1, 0.2, 0.4, 0.8])},
}


@pytest.mark.parametrize("name", OTHERS)
def test_call_of_another_form_is_not_a_repetition(name, repeats):
    batch = STEP.batch(LAYER)
    for _ in range(3):
        check(batch)
    assert repeats == [True, True]
    check(batch, **OTHERS[name]())
    assert repeats == [True, True]


def test_log_sums_of_other_strides_are_not_a_repetition(repeats):
    batch = STEP.batch(LAYER)
    for width in (4, 4, 7):
        check(batch, lse=lse_of(width))
    assert repeats == [True]


def test_other_dtype_is_not_a_repetition(repeats):
    batch = STEP.batch(LAYER)
    check(batch)
    half = other_cache(dtype=torch.float16)
    check(batch, half)
    check(batch, half)
    assert repeats == [True]


@pytest.mark.parametrize("heads", [(4, 1), (2, 2)])
def test_other_heads_are_not_a_repetition(heads, repeats):
    batch = STEP.batch(LAYER)
    check(batch)
    layer = dataclasses.replace(LAYER, num_heads_q=heads[0], num_heads_kv=heads[1])
    check(batch, other_cache(heads=heads), layer)
    assert repeats == []


def test_queries_that_do_not_fit_are_refused_after_others_were_kept(repeats):
    batch = STEP.batch(LAYER)
    check(batch)
    out = torch.empty_like(STEP.q)
    with pytest.raises(ValueError, match=r"`out` must be \[4, 4, 64\]"):
        attend_batch(LAYER, batch, STEP.q, STEP.pages, out[:, :2])
    with pytest.raises(ValueError, match="heads"):
        attend_batch(LAYER, batch, STEP.q[:, :3], STEP.pages, out)
    half = torch.empty_like(STEP.q, dtype=torch.float16)
    with pytest.raises(TypeError, match="dtype"):
        attend_batch(LAYER, batch, half, STEP.pages, out)
    with pytest.raises(RuntimeError, match="`out` must be on cpu"):
        attend_batch(LAYER, batch, STEP.q, STEP.pages, torch.empty_like(STEP.q, device="meta"))
    assert repeats == []


def test_queries_that_are_aligned_otherwise(repeats):
    batch = STEP.batch(LAYER)
    check(batch)
    memory = torch.randn(STEP.q.numel() + 1)[1:].view(STEP.q.shape)
    assert memory.data_ptr() % 16
    check(batch, q=memory)
    assert repeats
    assert not any(repeats)
    check(batch)
    assert repeats[-1]


def test_layers_that_are_equal_repeat_each_other(repeats):
    known = STEP.batch(LAYER)
    for seed in (0, 0, 0):
        step = other_cache(seed=seed)
        check(known, step, dataclasses.replace(LAYER), q=torch.randn(4, 4, 64))
    assert repeats == [True, True]


def test_later_batch_repeats_with_its_own_tensors(repeats):
    check(STEP.batch(LAYER))
    later = make_step([(1, 7), (1, 40), (1, 60), (1, 110)], seed=4)
    assert later.cache.shape == STEP.cache.shape
    check(later.batch(LAYER), later)
    assert repeats == [True]


def test_repetition_in_eight_bits(repeats):
    step = make_step(DECODE, dtype=torch.float16)
    batch = step.batch(LAYER)
    outs = []
    for seed in (0, 0, 1):
        step = make_step(DECODE, dtype=torch.float16, seed=seed)
        cache = torch.zeros(*step.cache.shape[:3], 136, dtype=torch.int8)
        pages = int8_pages(cache, 64)
        for b, keys in enumerate(step.seq_lens):
            k, v = step.keys(b)
            places = torch.arange(int(keys))
            slots = step.block_table[b, places // 32] * 32 + places % 32
            update_cache(k, v, pages, slots.long())
        repeats.clear()
        outs.append(torch.full_like(step.q, torch.nan))
        own = step.batch(LAYER) if seed else batch
        attend_batch(LAYER, own, step.q, pages, outs[-1])
        assert pages.scales is not None
        k, v = (
            (side * scale[..., None]).float()
            for side, scale in zip((pages.k, pages.v), pages.scales, strict=True)
        )
        stored = dataclasses.replace(step, cache=torch.cat([k, v], -1))
        expected, _ = attend_in_float64(stored, LAYER)
        torch.testing.assert_close(outs[-1].double(), expected, atol=4e-3, rtol=4e-3)
    assert repeats == [True]
    assert torch.equal(outs[0], outs[1])


def test_mode_may_change_after_a_launch_was_kept(monkeypatch, repeats):
    batch = STEP.batch(LAYER)
    check(batch)
    monkeypatch.setenv("FA_TRITON_CPU", "reference")
    check(batch)
    assert repeats == []


def test_kept_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(attention, "_KEPT_CALLS", 3)
    batch = STEP.batch(LAYER)
    for width in range(4, 12):
        check(batch, q=rows(width))
        assert 1 <= len(batch.parts[0].calls) <= 3


def test_a_result_and_a_cache_that_were_let_go_are_not_touched(repeats):
    batch = STEP.batch(LAYER)
    out = torch.empty_like(STEP.q)
    memory = out.view(-1)
    check(batch, out=out)
    memory.fill_(7)
    del out
    check(batch, other_cache())
    assert repeats == [True]
    assert memory.eq(7).all()


def test_a_cache_whose_memory_is_gone_is_refused():
    batch = STEP.batch(LAYER)
    cache = STEP.cache.clone()
    pages = joint_pages(cache, 64)
    out = torch.empty_like(STEP.q)
    for _ in range(2):
        attend_batch(LAYER, batch, STEP.q, pages, out)
    cache.untyped_storage().resize_(0)
    with pytest.raises(NotImplementedError, match="must have memory"):
        attend_batch(LAYER, batch, STEP.q, pages, out)


def test_what_is_refused_at_first_is_refused_after_a_kept_call(repeats):
    batch, out = STEP.batch(LAYER), torch.empty_like(STEP.q)
    for _ in range(2):
        check(batch)
    negated = torch._neg_view(STEP.q.clone())
    with pytest.raises(ValueError, match="negates them lazily"):
        attend_batch(LAYER, batch, negated, STEP.pages, out)
    with pytest.raises(ValueError, match="`out` must hold its values in memory"):
        attend_batch(LAYER, batch, STEP.q, STEP.pages, torch._neg_view(out))
    with pytest.raises(NotImplementedError, match="must not require a gradient"):
        attend_batch(LAYER, batch, STEP.q.clone().requires_grad_(), STEP.pages, out)
    assert repeats == [True]
