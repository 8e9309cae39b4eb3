"""Layers of our class, with metadata from vllm-ascend's builder, on tensors of the CPU.

What runs is vllm-ascend's own ``forward`` down to the methods that launch its kernels, and our
kernels natively in their place; the answer is the definition in float64.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.vllm_adapter.batches import Step, attend_in_float64, make_step

NAMES = ["model.layers.0.self_attn.attn"]
TOLERANCE = 1.6e-2
DECODE = [(1, 5), (1, 150), (1, 128)]
PREFILL = [(20, 20), (130, 130)]
CHUNKS = [(16, 180), (16, 16), (9, 141)]
MIXED = [(1, 5), (1, 190), (20, 150), (7, 7)]
SPECULATIVE = [(3, 160), (3, 17), (3, 3)]


@pytest.fixture
def engine(engine_config, vllm_ascend, monkeypatch):
    """The engine's configuration as the current one; memory is pinned for an NPU alone."""
    from vllm.config import set_current_vllm_config

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_, **__: self)
    with set_current_vllm_config(engine_config):
        yield engine_config


class Layer:
    """One layer: class, builder and cache as vllm-ascend's runner makes them."""

    def __init__(self, engine, step: Step, **options):
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        from fa_triton.vllm.ascend.backend import FaTritonAscendBackend

        heads, dim = step.q.shape[1], step.head_dim
        num_pages, kv_heads, page, _ = step.cache.shape
        arguments = {
            "num_heads": heads,
            "head_size": dim,
            "scale": dim**-0.5,
            "num_kv_heads": kv_heads,
            "alibi_slopes": None,
            "sliding_window": None,
            "kv_cache_dtype": "auto",
            "logits_soft_cap": None,
            "attn_type": "decoder",
            "kv_sharing_target_layer_name": None,
        }
        sinks = options.pop("sinks", None)
        extra = {} if sinks is None else {"sinks": sinks}
        self.impl = FaTritonAscendBackend.get_impl_cls()(*(arguments | options).values(), **extra)
        self.impl.process_weights_after_loading(step.q.dtype)
        spec = FullAttentionSpec(
            block_size=page, num_kv_heads=kv_heads, head_size=dim, dtype=step.q.dtype
        )
        device = torch.device("cpu")
        self.builder = FaTritonAscendBackend.get_builder_cls()(spec, NAMES, engine, device)
        engine.compilation_config.static_forward_context[NAMES[0]] = self
        shape = FaTritonAscendBackend.get_kv_cache_shape(num_pages, page, kv_heads, dim)
        cache = torch.full(shape, torch.nan, dtype=step.q.dtype)
        self.cache = (cache[0], cache[1])
        self.layer_name = NAMES[0]
        self._k_scale_float = self._v_scale_float = 1.0

    def fill(self, step: Step, new_slots: torch.Tensor) -> None:
        """Put the old keys and values into the cache; new ones are not there yet."""
        page = step.cache.shape[2]
        for cache, part in zip(self.cache, (slice(0, step.head_dim), slice(step.head_dim, None)),
                               strict=True):  # fmt: skip
            rows = step.cache[..., part].transpose(1, 2).clone()
            rows[new_slots // page, new_slots % page] = torch.nan
            cache.copy_(rows if cache.shape[1] == page else rows.transpose(1, 2))

    def forward(self, step: Step, *, causal: bool = True, fast_path: bool = False):
        """Build metadata, write the new keys, attend."""
        slots = new_slots(step)
        self.fill(step, slots)
        key, value = new_rows(step, slots)
        metadata = self.builder.build(0, common_metadata(step, slots, causal=causal))
        padding = step.q.shape[0] - step.num_tokens
        tail = key.new_full((padding, *key.shape[1:]), torch.nan)
        output = torch.full_like(step.q, 7)
        result = self.impl.forward(
            self,
            step.q,
            torch.cat([key, tail]),
            torch.cat([value, tail]),
            self.cache,
            metadata,
            output,
        )
        assert result.data_ptr() == output.data_ptr()
        return output, metadata


def new_slots(step: Step) -> torch.Tensor:
    """Slot of every query token: the last places of its sequence."""
    page = step.cache.shape[2]
    q_lens = np.diff(step.query_start_loc)
    slots = [
        int(step.block_table[b, n // page]) * page + n % page
        for b, (tokens, keys) in enumerate(zip(q_lens, step.seq_lens, strict=True))
        for n in range(keys - tokens, keys)
    ]
    return torch.tensor(slots)


def new_rows(step: Step, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    page = step.cache.shape[2]
    rows = step.cache[slots // page, :, slots % page]
    return rows[..., : step.head_dim], rows[..., step.head_dim :]


def common_metadata(step: Step, slots: torch.Tensor, *, causal: bool):
    """What the runner hands to builders."""
    from vllm_ascend.attention.attention_v1 import AscendAttentionState
    from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

    starts = torch.from_numpy(step.query_start_loc)
    lens = torch.from_numpy(step.seq_lens)
    q_lens = starts.diff()
    padded = torch.full((step.q.shape[0],), -1, dtype=torch.int32)
    padded[: len(slots)] = slots.int()
    is_decode = int(q_lens.max()) == 1
    return AscendCommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=lens,
        seq_lens_cpu=lens.clone(),
        _seq_lens_cpu=lens.clone(),
        num_computed_tokens_cpu=lens - q_lens,
        num_reqs=len(lens),
        num_actual_tokens=step.num_tokens,
        max_query_len=int(q_lens.max()),
        max_seq_len=int(lens.max()),
        block_table_tensor=step.block_table.where(step.block_table < 2**31 - 1, 0),
        slot_mapping=padded,
        causal=causal,
        attn_state=(
            AscendAttentionState.DecodeOnly if is_decode else AscendAttentionState.ChunkedPrefill
        ),
        num_input_tokens=step.q.shape[0],
        actual_seq_lengths_q=starts[1:].tolist(),
    )


def check(engine, lengths, *, padding=0, step_options=None, causal=True, **options):
    options_of_step = {"page": 128, "dtype": torch.bfloat16, **(step_options or {})}
    step = make_step(lengths, padding=padding, **options_of_step)
    layer = Layer(engine, step, **options)
    output, metadata = layer.forward(step, causal=causal)
    slopes = options.get("alibi_slopes")
    expected, _ = attend_in_float64(
        step,
        layer.impl.form,
        sinks=options.get("sinks"),
        alibi_slopes=None if slopes is None else torch.tensor(slopes),
        is_causal=causal,
    )
    got = output[: step.num_tokens].double()
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    return layer, metadata, step


@pytest.mark.parametrize(
    "lengths", [DECODE, PREFILL, CHUNKS, MIXED, SPECULATIVE],
    ids=["decode", "prefill", "chunks", "mixed", "speculative"],
)  # fmt: skip
def test_kinds_of_batches(engine, lengths, nan_filled_memory):
    check(engine, lengths, padding=5)


@pytest.mark.parametrize("page", [16, 128, 1024])
def test_sizes_of_blocks(engine, page):
    check(engine, MIXED, step_options={"page": page})


@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 48},
        {"logits_soft_cap": 5.0},
        {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]), "sliding_window": 20},
    ],
    ids=["window", "soft cap", "ALiBi", "sinks and window"],
)
def test_what_vllm_ascend_drops_or_restricts(engine, options):
    check(engine, MIXED, **options)


@pytest.mark.parametrize("head_dim", [80, 256])
def test_head_sizes(engine, head_dim):
    check(engine, [(1, 40), (9, 130)], step_options={"head_dim": head_dim})


def test_batches_without_a_causal_mask(engine):
    check(engine, CHUNKS, causal=False)


def test_head_major_caches(engine, version, monkeypatch):
    if version < (0, 28):
        pytest.skip("vllm-ascend lays caches out head by head from 0.28 on")
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    layer, _, step = check(engine, MIXED)
    assert layer.cache[0].shape == (*step.cache.shape[:3], 64)


def test_padding_is_not_written(engine):
    layer, _, step = check(engine, MIXED, padding=6)
    page = step.cache.shape[2]
    used = torch.zeros(step.cache.shape[0] * page, dtype=torch.bool)
    for b, keys in enumerate(step.seq_lens):
        for n in range(keys):
            used[int(step.block_table[b, n // page]) * page + n % page] = True
    rows = layer.cache[0].flatten(0, 1).isnan().flatten(1).any(1)
    assert torch.equal(rows, ~used)


def test_one_plan_per_batch_and_none_in_a_layer(engine):
    layer, _, step = check(engine, MIXED)
    common = common_metadata(step, new_slots(step), causal=True)
    batch = layer.builder.build(0, common).fa_triton_batch
    assert [len(part.plans) for part in batch.parts] == [1, 1]
    assert batch.parts[0].seq_lens.data_ptr() == common.seq_lens.data_ptr()


def test_dummy_request_behind_full_buffers(engine):
    """Padding of a full batch has query starts, but no length and no row of the block table."""
    step = make_step(MIXED, padding=3, page=128, dtype=torch.bfloat16)
    layer = Layer(engine, step)
    slots = new_slots(step)
    layer.fill(step, slots)
    key, value = new_rows(step, slots)
    layer.impl.do_kv_cache_update(layer, key, value, layer.cache, slots)
    common = common_metadata(step, slots, causal=True)
    last = torch.tensor([step.q.shape[0]], dtype=torch.int32)
    common.query_start_loc = torch.cat([common.query_start_loc, last])
    common.query_start_loc_cpu = common.query_start_loc.clone()
    common.num_reqs += 1
    metadata = layer.builder.build(0, common)
    assert metadata.block_tables.shape[0] == len(MIXED) + 1
    output = torch.full_like(step.q, 7)
    layer.impl.forward(layer, step.q, None, None, layer.cache, metadata, output)
    expected, _ = attend_in_float64(step, layer.impl.form)
    got = output[: step.num_tokens].double()
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (output[step.num_tokens :] == 7).all()


def test_capture_builds_the_batch_too(engine):
    from vllm_ascend.attention.attention_v1 import AscendAttentionState

    layer, _, step = check(engine, DECODE)
    common = common_metadata(step, new_slots(step), causal=True)
    metadata = layer.builder.build_for_graph_capture(common, AscendAttentionState.DecodeOnly)
    assert metadata.fa_triton_batch.num_tokens == step.num_tokens


def test_window_without_a_causal_mask_is_handed_back(engine, monkeypatch):
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

    calls = []

    def theirs(self, query, key, value, attn_metadata, output, kv_cache=None):
        calls.append(query.shape)
        return output

    monkeypatch.setattr(AscendAttentionBackendImpl, "forward_fused_infer_attention", theirs)
    step = make_step(CHUNKS, page=128, dtype=torch.bfloat16)
    output, _ = Layer(engine, step, sliding_window=9).forward(step, causal=False)
    assert calls == [step.q.shape]
    assert (output == 7).all()


def test_profiling_and_shared_caches(engine, monkeypatch):
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

    step = make_step(DECODE, page=128, dtype=torch.bfloat16)
    layer = Layer(engine, step)
    output = layer.impl.forward(layer, step.q, step.q, step.q, layer.cache, None, step.q + 1)
    assert not output.any()
    shared = Layer(engine, step, kv_sharing_target_layer_name="model.layers.0.self_attn.attn")
    calls = []

    def theirs(self, query, key, value, kv_cache, attn_metadata, output):
        calls.append(query.shape)
        return query, key, value, output

    monkeypatch.setattr(AscendAttentionBackendImpl, "reshape_and_cache", theirs)
    metadata = SimpleNamespace(slot_mapping=None, num_actual_tokens=0)
    shared.impl.reshape_and_cache(step.q, step.q, step.q, shared.cache, metadata, step.q)
    assert calls == [step.q.shape]


def test_cache_update_alone(engine):
    step = make_step(MIXED, page=128, dtype=torch.bfloat16)
    layer = Layer(engine, step)
    slots = new_slots(step)
    key, value = new_rows(step, slots)
    layer.impl.do_kv_cache_update(layer, key, value, layer.cache, slots.int())
    page = step.cache.shape[2]
    for cache, rows in zip(layer.cache, (key, value), strict=True):
        assert torch.equal(cache[slots // page, slots % page], rows)
