"""What is served and what goes back, with the reason."""

from __future__ import annotations

import pytest
import torch

from fa_triton.vllm.support import (
    LayerNeeds,
    asked_options,
    kernel_block_size,
    preferred_block_size,
    reason_against,
)


def needs(**options):
    return LayerNeeds(**({"head_size": 128, "dtype": torch.bfloat16} | options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": torch.float32},
        {"dtype": torch.float16, "kv_cache_dtype": "float16"},
        {"kv_cache_dtype": None},
        {"head_size": 64, "head_size_v": 256},
        {"block_size": 16},
        {"block_size": 1024},
        {"block_size": 2048},
        {"has_window": True},
        {"is_non_causal": True},
        {"selected": "CUSTOM"},
        {"kv_cache_dtype": "int8_per_token_head", "block_size": 32},
        {"kv_cache_dtype": "int8_per_token_head", "dtype": torch.float16, "head_size": 80},
    ],
)
def test_served(options):
    assert reason_against(needs(**options)) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head_size": 512}, "head size must be a multiple of 8 up to 256, got 512"),
        ({"head_size": 0}, "head size must be"),
        ({"head_size_v": 20}, "head size of v must be"),
        ({"dtype": torch.float64}, "activations must be"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8"),
        ({"kv_cache_dtype": "float16"}, "in the dtype of the model torch.bfloat16, got float16"),
        (
            {"kv_cache_dtype": "int8_per_token_head", "dtype": torch.float32},
            "eight bits needs activations in 16 bits, got torch.float32",
        ),
        (
            {"kv_cache_dtype": "int8_per_token_head", "head_size": 72},
            "multiples of 16 with a cache of eight bits, got 72",
        ),
        (
            {"kv_cache_dtype": "int8_per_token_head", "block_size": 16},
            "must be multiples of 32 tokens, got 16",
        ),
        ({"block_size": 8}, "multiples of 16 tokens up to 1024"),
        ({"block_size": 24}, "--block-size"),
        ({"attn_type": "encoder_only"}, "only attention of decoders"),
        ({"is_mla": True}, "multi-head latent attention"),
        ({"is_sparse": True}, "sparse"),
        ({"is_compressed": True}, "compressed"),
        ({"has_mm_prefix": True}, "within images"),
        ({"has_head_scales": True}, "scales per head"),
        ({"has_context_parallel": True}, "context parallelism"),
        ({"has_reference_window": True}, "spares the prompt"),
        ({"has_device_query_lens": True}, "adaptive drafts"),
        ({"is_non_causal": True, "has_window": True}, "window without a causal mask"),
        ({"selected": "TRITON_ATTN"}, "asked for the backend TRITON_ATTN"),
    ],
)
def test_handed_back(options, words):
    reason = reason_against(needs(**options))
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    ("size", "block"), [(16, 16), (1024, 1024), (1040, 208), (2048, 1024), (1056, 528), (24, 0)]
)
def test_large_blocks_are_divided(size, block):
    assert kernel_block_size(size) == block


@pytest.mark.parametrize(
    ("size", "block"), [(32, 32), (1024, 1024), (1056, 352), (2048, 1024), (1040, 0)]
)
def test_large_blocks_of_eight_bits_are_divided_into_multiples_of_32(size, block):
    assert kernel_block_size(size, 32) == block


@pytest.mark.parametrize(
    ("default", "stored", "size"),
    [
        (16, "auto", 16),
        (128, None, 128),
        (8, "auto", 16),
        (16, "int8_per_token_head", 32),
        (128, "int8_per_token_head", 128),
    ],
)
def test_block_size_where_the_user_asks_for_none(default, stored, size):
    assert preferred_block_size(default, stored) == size
    assert reason_against(needs(kv_cache_dtype=stored, block_size=size)) is None


def test_options_that_ask_for_nothing_are_not_named():
    options = {"a": None, "b": False, "c": 0, "tensor": torch.zeros(3), "sqrt": True, "d": []}
    assert asked_options(options) == ["sqrt", "tensor"]
