"""What is handed back on Ascend, by the engine's configuration; no vLLM is needed to decide."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from fa_triton.vllm.ascend.needs import reason_against_with
from fa_triton.vllm.selection import wrap_platform
from fa_triton.vllm.support import LayerNeeds


def needs(**options) -> LayerNeeds:
    return LayerNeeds(**({"head_size": 64, "dtype": torch.bfloat16} | options))


def config(**options) -> SimpleNamespace:
    values = {
        "parallel_config": SimpleNamespace(
            prefill_context_parallel_size=1, decode_context_parallel_size=1
        ),
        "quant_config": None,
        "additional_config": None,
        "speculative_config": None,
    }
    return SimpleNamespace(**(values | options))


@pytest.mark.parametrize("engine", [None, config(), config(additional_config={})])
@pytest.mark.parametrize("head_size", [0, 64, 256])
def test_plain_layers_and_the_probe_are_served(engine, head_size):
    assert reason_against_with(needs(head_size=head_size), engine) is None


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (
            config(parallel_config=SimpleNamespace(decode_context_parallel_size=2)),
            "context parallelism",
        ),
        (
            config(parallel_config=SimpleNamespace(prefill_context_parallel_size=4)),
            "context parallelism",
        ),
        (config(quant_config=SimpleNamespace(enable_c8_quant=True)), "quantised cache (C8)"),
        (config(additional_config={"enable_hamming_sparse": True}), "enable_hamming_sparse"),
    ],
)
def test_options_of_the_engine(engine, reason):
    assert reason in reason_against_with(needs(), engine)


def test_what_the_selector_says_comes_first():
    engine = config(quant_config=SimpleNamespace(enable_c8_quant=True))
    assert "multi-head latent" in reason_against_with(needs(is_mla=True), engine)


def test_caches_with_scales_are_not_allocated():
    reason = reason_against_with(needs(kv_cache_dtype="int8_per_token_head"), config())
    assert "no cache with scales" in reason


def test_hash_sparsity_is_off_with_drafts():
    engine = config(additional_config={"enable_hamming_sparse": True}, speculative_config=object())
    assert reason_against_with(needs(), engine) is None


def test_only_one_choice_is_replaced():
    class Platform:
        @classmethod
        def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
            return "other" if num_heads == 3 else "plain"

    selector = SimpleNamespace(
        head_size=64, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=128
    )
    wrap_platform(Platform, "ours", replaces="plain")
    assert Platform.get_attn_backend_cls(None, selector) == "ours"
    assert Platform.get_attn_backend_cls(None, selector, num_heads=3) == "other"
    selector.use_mla = True
    assert Platform.get_attn_backend_cls(None, selector) == "plain"


def test_nothing_of_vllm_is_imported_to_register():
    import fa_triton.vllm.ascend  # noqa: F401

    loaded = {name for name in sys.modules if name.partition(".")[0] in ("vllm", "vllm_ascend")}
    assert not loaded
