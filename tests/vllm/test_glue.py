"""The classes that vLLM sees, without an engine around them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

from vllm.v1.attention.backend import (  # noqa: E402
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout, KVQuantMode  # noqa: E402

from fa_triton.vllm import backend as glue  # noqa: E402
from tests.vllm_adapter.batches import attend_in_float64, make_step  # noqa: E402

LENGTHS = [(1, 5), (1, 90), (20, 50), (7, 7)]


def new_layer(**options):
    values = {
        "num_heads": 4,
        "head_size": 64,
        "scale": 0.125,
        "num_kv_heads": 2,
        "alibi_slopes": None,
        "sliding_window": None,
        "kv_cache_dtype": "auto",
    }
    return glue.FaTritonImpl(**(values | options))


def new_builder(monkeypatch, *layers, page=32, dtype=torch.float32, speculative=None):
    config = SimpleNamespace(
        speculative_config=speculative,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        model_config=SimpleNamespace(dtype=dtype),
    )
    named = {f"layer.{n}": SimpleNamespace(impl=layer) for n, layer in enumerate(layers)}
    monkeypatch.setattr(glue, "get_layers_from_vllm_config", lambda *_: named)
    spec = SimpleNamespace(block_size=page)
    return glue.FaTritonMetadataBuilder(spec, list(named), config, torch.device("cpu"))


def common_of(step, **options):
    starts = torch.from_numpy(step.query_start_loc)
    values = {
        "query_start_loc": starts,
        "query_start_loc_cpu": starts,
        "seq_lens": torch.from_numpy(step.seq_lens),
        "num_reqs": len(step.seq_lens),
        "num_actual_tokens": step.num_tokens,
        "max_query_len": 20,
        "max_seq_len": int(step.seq_lens.max()),
        "block_table_tensor": step.block_table,
        "slot_mapping": torch.full((step.num_tokens,), -1),
    }
    return CommonAttentionMetadata(**(values | options))


def test_interface():
    backend = glue.FaTritonBackend
    assert issubclass(backend, AttentionBackend)
    assert issubclass(backend.get_impl_cls(), AttentionImpl)
    assert issubclass(backend.get_builder_cls(), AttentionMetadataBuilder)
    for one in (backend, backend.get_impl_cls(), backend.get_builder_cls()):
        assert not getattr(one, "__abstractmethods__", None)
    assert backend.get_name() in AttentionBackendEnum.__members__
    assert not backend.forward_includes_kv_cache_update
    support = backend.get_builder_cls().get_cudagraph_support(None, None)
    assert support is AttentionCGSupport.NEVER
    layouts = backend.supported_kv_cache_layouts()
    assert set(layouts) == set(KVCacheLayout)
    assert layouts[0] is KVCacheLayout.LBHNC


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"head_size": 512}, ["head_size not supported"]),
        ({"dtype": torch.float64}, ["dtype not supported"]),
        ({"kv_cache_dtype": "fp8"}, ["kv_cache_dtype not supported"]),
        ({"block_size": 24}, ["block_size not supported"]),
        ({"use_mla": True}, ["MLA not supported"]),
        ({"attn_type": AttentionType.ENCODER_ONLY}, ["attention type"]),
        ({"use_adaptive_verification": True}, ["device-cpu query lens mismatch"]),
        ({"has_sink": True, "has_sliding_window": True, "use_batch_invariant": True}, []),
    ],
)
def test_what_cuda_asks_before_it_takes_custom(options, words):
    values = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "use_mla": False,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": None,
        "attn_type": AttentionType.DECODER,
    }
    reasons = glue.FaTritonBackend.validate_configuration(**(values | options))
    assert len(reasons) == len(words)
    for reason, word in zip(reasons, words, strict=True):
        assert word in reason


def test_block_sizes():
    sizes = glue.FaTritonBackend.get_supported_kernel_block_sizes
    assert str(sizes()) == "[MultipleOf(16)]"
    assert sizes(SimpleNamespace(block_size=2048)) == [1024]


def test_room_for_the_scales_of_eight_bits():
    spec = FullAttentionSpec(
        block_size=32,
        num_kv_heads=2,
        head_size=64,
        head_size_v=64,
        dtype=torch.int8,
        kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD,
    )
    assert glue.FaTritonBackend.customize_spec(spec).state_content_bytes == 136
    assert str(glue.FaTritonBackend.get_supported_kernel_block_sizes(spec)) == "[MultipleOf(32)]"
    plain = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    assert glue.FaTritonBackend.customize_spec(plain) is plain


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 8},
        {"logits_soft_cap": 2.0, "alibi_slopes": [0.1, 0.2, 0.4, 0.8]},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.bfloat16), "sliding_window": 30},
    ],
)
def test_forward(monkeypatch, options):
    step = make_step(LENGTHS, padding=5)
    layer = new_layer(**options)
    layer.process_weights_after_loading(torch.float32)
    metadata = new_builder(monkeypatch, layer).build(0, common_of(step))
    assert [len(part.plans) for part in metadata.batch.parts] == [1, 1]
    out = torch.full_like(step.q, torch.nan)
    assert layer.forward(None, step.q, None, None, step.cache, metadata, out) is out
    slopes = options.get("alibi_slopes")
    expected, _ = attend_in_float64(
        step,
        layer.form,
        sinks=options.get("sinks"),
        alibi_slopes=None if slopes is None else torch.tensor(slopes),
    )
    tokens = step.num_tokens
    torch.testing.assert_close(out[:tokens].double(), expected, atol=2e-6, rtol=2e-6)
    assert out[tokens:].isnan().all()


def test_layers_that_differ_in_their_window(monkeypatch):
    layers = [new_layer(), new_layer(sliding_window=8), new_layer()]
    step = make_step(LENGTHS)
    metadata = new_builder(monkeypatch, *layers).build(0, common_of(step))
    assert [len(part.plans) for part in metadata.batch.parts] == [2, 2]
    for layer in layers:
        out = torch.full_like(step.q, torch.nan)
        layer.forward(None, step.q, None, None, step.cache, metadata, out)
        expected, _ = attend_in_float64(step, layer.form)
        torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=2e-6)
    assert [len(part.plans) for part in metadata.batch.parts] == [2, 2]


def test_memory_is_measured_without_a_batch():
    out = torch.full((3, 4, 64), torch.nan)
    assert new_layer().forward(None, out, None, None, torch.empty(0), None, out).eq(0).all()


def test_cache_update(monkeypatch):
    layer = new_layer()
    cache = torch.zeros(4, 2, 32, 128)
    key, value = torch.randn(2, 5, 2, 64)
    layer.do_kv_cache_update(None, key, value, cache, torch.tensor([40, -1, 3]))
    assert torch.equal(cache[1, :, 8], torch.cat([key[0], value[0]], -1))
    assert torch.equal(cache[0, :, 3], torch.cat([key[2], value[2]], -1))
    assert cache.count_nonzero() == 2 * 2 * 128


def test_refusals(monkeypatch):
    with pytest.raises(NotImplementedError, match="use_alibi_sqrt; unset FA_TRITON_VLLM"):
        new_layer(use_alibi_sqrt=True)
    with pytest.raises(NotImplementedError, match="attn_type=encoder"):
        new_layer(attn_type="encoder")
    out = torch.empty(3, 4, 64)
    with pytest.raises(NotImplementedError, match="results are not quantised"):
        new_layer().forward(
            None, out, None, None, torch.empty(0), None, out, output_scale=torch.ones(1)
        )
    step = make_step(LENGTHS)
    common = common_of(step, causal=torch.ones(4, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="one bool per batch"):
        new_builder(monkeypatch, new_layer()).build(0, common)


def test_speculative_queries_count_as_short(monkeypatch):
    speculative = SimpleNamespace(num_speculative_tokens=3, parallel_drafting=False)
    builder = new_builder(monkeypatch, new_layer(), speculative=speculative)
    # the CPU attends sequences in the order they are in
    assert builder.reorder_batch_threshold is None
    step = make_step([(4, 60), (4, 17), (20, 50)])
    parts = builder.build(0, common_of(step)).batch.parts
    assert [part.num_tokens for part in parts] == [8, 20]
