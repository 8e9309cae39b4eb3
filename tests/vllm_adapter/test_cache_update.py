"""New keys and values in the pages, natively, against indexing."""

from __future__ import annotations

import pytest
import torch

from fa_triton.vllm.cache_update import update_by_reference, update_cache
from fa_triton.vllm.cache_views import joint_pages, token_major_pages

pytestmark = pytest.mark.slow

PAGES, PAGE, HEADS = 6, 32, 2


def new_tokens(tokens, head_dim=64, dtype=torch.float32, heads=HEADS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(tokens, 3 * heads, head_dim, generator=generator).to(dtype)
    slots = torch.randperm(PAGES * PAGE, generator=generator)[:tokens]
    return qkv[:, heads : 2 * heads], qkv[:, 2 * heads :], slots


def filled_cache(shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape).to(dtype)


def check(key, value, slots, cache, head_dim):
    expected = cache.clone(memory_format=torch.preserve_format)
    update_by_reference(key, value, joint_pages(expected, head_dim), slots)
    update_cache(key, value, joint_pages(cache, head_dim), slots)
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("tokens", [1, 7, 150])
@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64])
def test_slots(tokens, slot_dtype):
    key, value, slots = new_tokens(tokens)
    check(key, value, slots.to(slot_dtype), filled_cache((PAGES, HEADS, PAGE, 128)), 64)


def test_padding_is_skipped():
    key, value, slots = new_tokens(20)
    slots[3], slots[9], slots[19] = -1, PAGES * PAGE, -7
    cache = filled_cache((PAGES, HEADS, PAGE, 128))
    before = cache.clone()
    update_cache(key, value, joint_pages(cache, 64), torch.full((20,), -1))
    assert torch.equal(cache, before)
    check(key, value, slots, cache, 64)
    assert (cache != before).any(-1).sum() == 17 * HEADS


def test_slots_that_lie_apart():
    key, value, slots = new_tokens(7)
    apart = torch.stack([slots, torch.full_like(slots, -1)], 1)[:, 0]
    check(key, value, apart, filled_cache((PAGES, HEADS, PAGE, 128)), 64)


@pytest.mark.parametrize(
    ("head_dim", "heads", "dtype"),
    [(80, 3, torch.bfloat16), (128, 8, torch.float16), (256, 40, torch.float32)],
)
def test_forms(head_dim, heads, dtype):
    key, value, slots = new_tokens(9, head_dim, dtype, heads)
    check(key, value, slots, filled_cache((PAGES, heads, PAGE, 2 * head_dim), dtype), head_dim)


def test_head_dim_of_v():
    key, _, slots = new_tokens(9, 96)
    value = torch.randn(9, HEADS, 64)
    check(key, value, slots, filled_cache((PAGES, HEADS, PAGE, 160)), 96)


def test_keys_of_another_dtype():
    key, value, slots = new_tokens(9)
    check(key, value, slots, filled_cache((PAGES, HEADS, PAGE, 128), torch.bfloat16), 64)


def test_cache_with_other_strides():
    key, value, slots = new_tokens(9)
    cache = filled_cache((PAGES, PAGE, HEADS, 128)).transpose(1, 2)
    check(key, value, slots, cache, 64)


def test_one_tensor_per_side():
    key, value, slots = new_tokens(9)
    k_cache, v_cache = filled_cache((2, PAGES, PAGE, HEADS, 64))
    update_cache(key, value, token_major_pages(k_cache, v_cache), slots)
    assert torch.equal(k_cache.view(-1, HEADS, 64)[slots], key)
    assert torch.equal(v_cache.view(-1, HEADS, 64)[slots], value)


def test_rows_behind_the_slots_are_padding():
    key, value, slots = new_tokens(12)
    check(key, value, slots[:7], filled_cache((PAGES, HEADS, PAGE, 128)), 64)


def test_rows_that_are_not_dense():
    key, value, slots = new_tokens(9)
    key = key.transpose(1, 2).contiguous().transpose(1, 2)
    assert key.stride(2) != 1
    check(key, value, slots, filled_cache((PAGES, HEADS, PAGE, 128)), 64)


def test_nothing_to_write():
    cache = filled_cache((PAGES, HEADS, PAGE, 128))
    key, value, slots = new_tokens(4)
    check(key, value, slots[:0], cache, 64)


def test_bad_arguments():
    key, value, slots = new_tokens(4)
    pages = joint_pages(filled_cache((PAGES, HEADS, PAGE, 128)), 64)
    with pytest.raises(ValueError, match="`key` must be"):
        update_cache(key[:2], value, pages, slots)
    with pytest.raises(ValueError, match="`value` must be"):
        update_cache(key, value[..., :32], pages, slots)
    with pytest.raises(TypeError, match="`slot_mapping` must be int32 or int64"):
        update_cache(key, value, pages, slots.float())
    with pytest.raises(ValueError, match="`kv_cache` must be"):
        joint_pages(torch.empty(2, 3, 4), 64)
    with pytest.raises(ValueError, match="`value_cache` must be"):
        token_major_pages(torch.empty(2, 3, 4, 5), torch.empty(2, 3, 4))
