"""Our classes beside vllm-ascend's: relations, signatures, shapes of caches."""

from __future__ import annotations

import inspect

import pytest


@pytest.fixture(scope="module")
def pairs(vllm_ascend):
    """Our backend, layer and builder, each with the class it stands for."""
    from vllm_ascend.attention import attention_v1 as theirs

    from fa_triton.vllm.ascend.backend import FaTritonAscendBackend as Ours

    return {
        "backend": (Ours, theirs.AscendAttentionBackend),
        "impl": (Ours.get_impl_cls(), theirs.AscendAttentionBackendImpl),
        "builder": (Ours.get_builder_cls(), theirs.AscendAttentionMetadataBuilder),
    }


@pytest.mark.parametrize("part", ["backend", "impl", "builder"])
def test_subclasses_without_abstract_methods(pairs, part):
    ours, theirs = pairs[part]
    assert issubclass(ours, theirs)
    assert not inspect.isabstract(ours)


def parameters(function) -> list[tuple[str, object, bool]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default is p.empty) for p in found]


@pytest.mark.parametrize("part", ["backend", "impl", "builder"])
def test_overridden_methods_take_what_theirs_take(pairs, part):
    ours, theirs = pairs[part]
    own = [name for name, value in vars(ours).items() if callable(getattr(ours, name))]
    compared = [name for name in own if hasattr(theirs, name) and not name.startswith("__")]
    for name in (*compared, *(["__init__"] if "__init__" in vars(ours) else [])):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert parameters(mine) == parameters(other), name
    expected = {
        "backend": {"get_impl_cls", "get_builder_cls", "get_supported_kernel_block_sizes"},
        "impl": {
            "reshape_and_cache",
            "do_kv_cache_update",
            "forward_fused_infer_attention",
            "forward_paged_attention",
        },
        "builder": {"build", "get_cudagraph_support"},
    }
    assert expected[part] <= set(compared)


def test_inherited_methods_that_the_runner_calls(pairs):
    impl, their_impl = pairs["impl"]
    builder, their_builder = pairs["builder"]
    assert impl.forward is their_impl.forward
    assert impl.forward_impl is their_impl.forward_impl
    assert impl.update_graph_params is their_impl.update_graph_params
    assert builder.build_for_graph_capture is their_builder.build_for_graph_capture


def test_name_is_a_member_of_the_enum(pairs):
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    assert pairs["backend"][0].get_name() in AttentionBackendEnum.__members__


@pytest.mark.parametrize("layout", [None, "HND"])
def test_shape_of_the_cache(pairs, version, monkeypatch, layout):
    if layout:
        monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", layout)
    ours, theirs = pairs["backend"]
    shape = ours.get_kv_cache_shape(7, 128, 2, 64)
    assert shape == theirs.get_kv_cache_shape(7, 128, 2, 64)
    is_head_major = layout == "HND" and version >= (0, 28)
    assert shape == ((2, 7, 2, 128, 64) if is_head_major else (2, 7, 128, 2, 64))


def test_blocks_of_16_to_1024_tokens(pairs):
    sizes = pairs["backend"][0].get_supported_kernel_block_sizes()
    assert sizes[0] == pairs["backend"][1].get_supported_kernel_block_sizes()[0] == 128
    assert {16, 32, 64, 128, 256, 512, 1024} == set(sizes)

    from vllm.v1.worker.utils import select_common_block_size

    assert select_common_block_size(16, [pairs["backend"][0]]) == 16
    assert select_common_block_size(2048, [pairs["backend"][0]]) == 1024


def test_graphs_are_not_promised(pairs, engine_config):
    from vllm.v1.attention.backend import AttentionCGSupport

    builder = pairs["builder"][0]
    assert builder.get_cudagraph_support(engine_config, None) is AttentionCGSupport.NEVER


def test_context_parallelism_is_not_promised(pairs):
    supports = getattr(pairs["backend"][0], "supports_pcp", None)
    assert supports is None or supports() is False


def test_classes_that_vllm_ascend_swaps_in_stay_possible(pairs):
    """Layers of int8 checkpoints change their class while weights are loaded."""
    from vllm_ascend.attention.attention_v1 import AscendC8AttentionBackendImpl

    impl = object.__new__(pairs["impl"][0])
    impl.__class__ = AscendC8AttentionBackendImpl
    assert type(impl) is AscendC8AttentionBackendImpl
