"""Cache updates that repeat a kept launch: only calls that are alike in all but addresses do."""

from __future__ import annotations

import pytest
import torch

from fa_triton.vllm import cache_update as updates
from fa_triton.vllm.cache_update import update_by_reference, update_cache
from fa_triton.vllm.cache_views import CachePages, int8_pages, joint_pages, token_major_pages

pytestmark = pytest.mark.slow

PAGES, PAGE, HEADS, HEAD_DIM, TOKENS = 6, 32, 2, 64, 5


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    monkeypatch.setattr(updates, "_kept", {})


def rows(tokens=TOKENS, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(tokens, 3 * HEADS, HEAD_DIM, generator=generator).to(dtype)
    return qkv[:, HEADS : 2 * HEADS], qkv[:, 2 * HEADS :]


def slots(tokens=TOKENS, seed=0, last=PAGES * PAGE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(last, generator=generator)[:tokens]


def pages_of(shape=(PAGES, HEADS, PAGE, 2 * HEAD_DIM), dtype=torch.float32):
    return joint_pages(torch.zeros(shape, dtype=dtype), HEAD_DIM)


def clone(pages):
    sides = []
    for side in (pages.k, pages.v, pages.scales):
        sides.append(None if side is None else side.clone(memory_format=torch.preserve_format))
    return CachePages(*sides)


def check(key, value, pages, slot_mapping):
    expected = clone(pages)
    update_by_reference(key, value, expected, slot_mapping)
    update_cache(key, value, pages, slot_mapping)
    assert torch.equal(pages.k, expected.k)
    assert torch.equal(pages.v, expected.v)
    if pages.scales is not None:
        torch.testing.assert_close(pages.scales, expected.scales, rtol=1e-6, atol=0)


def far_rows():
    wide = torch.randn(TOKENS, 2 * HEADS, HEAD_DIM)
    return wide[:, ::2]


def half(side):
    """The same rows in fp16, at the same strides in elements."""
    rounded = torch.empty(TOKENS, 3 * HEADS, HEAD_DIM, dtype=torch.float16)[:, :HEADS]
    return rounded.copy_(side)


def short_cache_slots():
    """A slot that is behind the end of a cache of fewer pages."""
    return torch.tensor([3, 9, (PAGES - 1) * PAGE + 1, 40, 70])


KEY, VALUE = rows(seed=1)
OTHERS = {
    "more tokens": lambda: (*rows(7), pages_of(), slots(7)),
    "more rows than slots": lambda: (*rows(9), pages_of(), slots()),
    "strides of keys": lambda: (far_rows(), VALUE, pages_of(), slots()),
    "strides of values": lambda: (KEY, far_rows(), pages_of(), slots()),
    "dtype of keys": lambda: (half(KEY), VALUE, pages_of(), slots()),
    "dtype of values": lambda: (KEY, half(VALUE), pages_of(), slots()),
    "slots of 32 bits": lambda: (KEY, VALUE, pages_of(), slots().int()),
    "slots apart": lambda: (KEY, VALUE, pages_of(), slots().repeat_interleave(2)[::2]),
    "fewer pages": lambda: (
        KEY,
        VALUE,
        pages_of((PAGES - 1, HEADS, PAGE, 2 * HEAD_DIM)),
        short_cache_slots(),
    ),
    "smaller pages": lambda: (KEY, VALUE, pages_of((2 * PAGES, HEADS, 16, 128)), slots()),
    "dtype of the cache": lambda: (KEY, VALUE, pages_of(dtype=torch.bfloat16), slots()),
    "strides of the cache": lambda: (
        KEY,
        VALUE,
        token_major_pages(*torch.zeros(2, PAGES, PAGE, HEADS, HEAD_DIM)),
        slots(),
    ),
    "integers": lambda: (
        KEY,
        VALUE,
        int8_pages(torch.zeros(PAGES, HEADS, PAGE, 136, dtype=torch.int8), HEAD_DIM),
        slots(),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_call_of_another_form_is_not_a_repetition(name, repeats):
    check(KEY, VALUE, pages_of(), slots(seed=5))
    check(*rows(seed=2), pages_of(), slots(seed=6))
    assert repeats == [True]
    key, value, pages, slot_mapping = OTHERS[name]()
    if name == "integers":
        update_cache(key, value, pages, slot_mapping)
        assert pages.k.count_nonzero() > 0
    else:
        check(key, value, pages, slot_mapping)
    assert repeats == [True]


def test_keys_that_are_aligned_otherwise(repeats):
    check(KEY, VALUE, pages_of(), slots())
    memory = torch.randn(KEY.numel() * 3 + 1)[1:]
    key = memory.as_strided(KEY.shape, KEY.stride())
    assert key.data_ptr() % 16
    check(key, VALUE, pages_of(), slots())
    assert repeats == [False]
    check(*rows(seed=3), pages_of(), slots())
    assert repeats == [False, True]


def test_rows_that_are_copied_are_not_kept(repeats):
    key = KEY.transpose(1, 2).contiguous().transpose(1, 2)
    apart = slots().repeat_interleave(2)[::2]
    for seed in (1, 2):
        check(key + seed, VALUE, pages_of(), slots())
        check(KEY, VALUE, pages_of(), apart)
    assert (key + 1).stride(2) != 1
    assert repeats == []
    assert updates._kept == {}


def test_values_elsewhere_are_refused(repeats):
    dense = VALUE.contiguous()
    check(KEY, dense, pages_of(), slots())
    with pytest.raises(RuntimeError, match="`value` must be on cpu"):
        update_cache(KEY, dense.to("meta"), pages_of(), slots())
    with pytest.raises(RuntimeError, match="`slot_mapping` must be on cpu"):
        update_cache(KEY, dense, pages_of(), slots().to("meta"))
    assert repeats == []


def test_slots_of_fewer_tokens_are_not_a_repetition(repeats):
    check(*rows(9), pages_of(), slots(5))
    check(*rows(9), pages_of(), slots(7))
    assert repeats == []


def test_programs_follow_the_threads(repeats):
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        check(*rows(150), pages_of(), slots(150))
    assert repeats == [True]


def test_rows_that_do_not_fit_are_refused_after_others_were_kept():
    check(KEY, VALUE, pages_of(), slots())
    with pytest.raises(ValueError, match="`key` must be"):
        update_cache(KEY[:3], VALUE, pages_of(), slots())
    with pytest.raises(ValueError, match="`value` must be"):
        update_cache(KEY, VALUE[..., :32], pages_of(), slots())
    with pytest.raises(TypeError, match="`slot_mapping` must be int32 or int64"):
        update_cache(KEY, VALUE, pages_of(), slots().float())


def test_repetition_in_eight_bits(repeats):
    for seed in (1, 2, 3):
        pages = int8_pages(torch.zeros(PAGES, HEADS, PAGE, 136, dtype=torch.int8), HEAD_DIM)
        key, value = rows(seed=seed)
        expected = clone(pages)
        update_by_reference(key, value, expected, slots(seed=seed))
        update_cache(key, value, pages, slots(seed=seed))
        torch.testing.assert_close(pages.scales, expected.scales, rtol=1e-6, atol=0)
        assert (pages.k.int() - expected.k.int()).abs().max() <= 1
        assert (pages.v.int() - expected.v.int()).abs().max() <= 1
    assert repeats == [True, True]


def test_scales_with_other_strides_are_not_a_repetition(repeats):
    def apart(steps):
        scales = torch.zeros(2, PAGES, HEADS, PAGE * steps)[..., :PAGE]
        k, v = torch.zeros(2, PAGES, HEADS, PAGE, HEAD_DIM, dtype=torch.int8)
        return CachePages(k, v, scales)

    for steps in (1, 2):
        pages = apart(steps)
        expected = clone(pages)
        update_by_reference(KEY, VALUE, expected, slots())
        update_cache(KEY, VALUE, pages, slots())
        torch.testing.assert_close(pages.scales, expected.scales, rtol=1e-6, atol=0)
    assert repeats == []


def test_mode_may_change_after_a_launch_was_kept(monkeypatch, repeats):
    check(KEY, VALUE, pages_of(), slots())
    monkeypatch.setenv("FA_TRITON_CPU", "reference")
    check(KEY, VALUE, pages_of(), slots())
    assert repeats == []


def test_kept_launches_are_bounded(monkeypatch):
    monkeypatch.setattr(updates, "_KEPT_LAUNCHES", 3)
    for tokens in range(1, 9):
        check(*rows(tokens), pages_of(), slots(tokens))
        assert 1 <= len(updates._kept) <= 3


def test_a_cache_that_was_let_go_is_not_written_to(repeats):
    old = torch.zeros(PAGES, HEADS, PAGE, 2 * HEAD_DIM)
    memory = old.view(-1)
    check(KEY, VALUE, joint_pages(old, HEAD_DIM), slots())
    memory.fill_(7)
    del old
    check(KEY, VALUE, pages_of(), slots())
    assert repeats == [True]
    assert memory.eq(7).all()


def test_a_cache_whose_memory_is_gone_is_refused():
    cache = torch.zeros(PAGES, HEADS, PAGE, 2 * HEAD_DIM)
    pages = joint_pages(cache, HEAD_DIM)
    update_cache(KEY, VALUE, pages, slots())
    cache.untyped_storage().resize_(0)
    with pytest.raises(NotImplementedError, match="must have memory"):
        update_cache(KEY, VALUE, pages, slots())


def test_values_that_are_negated_lazily_are_refused_before_and_after(repeats):
    key, value = (x.contiguous() for x in rows())
    for _ in range(2):
        with pytest.raises(ValueError, match="`key` must hold its values in memory"):
            update_cache(torch._neg_view(key), value, pages_of(), slots())
        check(key, value, pages_of(), slots())
    assert repeats == [True]


def test_one_slot_without_an_axis_is_refused():
    with pytest.raises(TypeError, match="`slot_mapping` must be int32 or int64"):
        update_cache(*rows(), pages_of(), torch.tensor(3))
