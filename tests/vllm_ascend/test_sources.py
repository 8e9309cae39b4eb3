"""Versions between the pairings, whose vLLM is not installed: signatures in the source text."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path

import pytest

SOURCES = os.environ.get("FA_TRITON_ASCEND_SOURCES", "")
VERSIONS = ("0.24.0rc1", "0.25.1rc1", "0.26.0rc1", "0.27.1rc1", "0.28.0rc1", "0.29.0rc1")
ATTENTION = "attention/attention_v1.py"
THEIR_CLASSES = {
    "backend": "AscendAttentionBackend",
    "impl": "AscendAttentionBackendImpl",
    "builder": "AscendAttentionMetadataBuilder",
}
# Names of the metadata that the builder reads.
METADATA = {"block_tables", "seq_lens_list", "actual_seq_lengths_q", "slot_mapping", "causal"}


@pytest.fixture(params=VERSIONS)
def source(request, vllm_ascend):
    """Syntax trees of a version by the path of the module; None for a module that it lacks."""
    if not SOURCES:
        pytest.skip("no sources of vllm-ascend: make vllm-ascend-test")
    folder = Path(SOURCES) / request.param
    assert folder.is_dir()

    def tree(path: str) -> ast.Module | None:
        file = folder / path
        return ast.parse(file.read_text()) if file.is_file() else None

    return tree


@pytest.fixture(scope="module")
def ours(vllm_ascend):
    from fa_triton.vllm.ascend.backend import FaTritonAscendBackend as backend

    return {
        "backend": backend,
        "impl": backend.get_impl_cls(),
        "builder": backend.get_builder_cls(),
    }


def methods_of(tree: ast.Module, name: str) -> dict[str, ast.FunctionDef]:
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return {n.name: n for n in found.body if isinstance(n, ast.FunctionDef)}


def names_of(arguments: ast.arguments) -> list[str]:
    rest = [x.arg for x in (arguments.vararg, arguments.kwarg) if x is not None]
    plain = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [a.arg for a in plain] + rest


@pytest.mark.parametrize("part", ["backend", "impl", "builder"])
def test_overridden_methods(source, ours, part):
    theirs = methods_of(source(ATTENTION), THEIR_CLASSES[part])
    compared = 0
    for name, value in vars(ours[part]).items():
        mine = inspect.unwrap(getattr(value, "__func__", value))
        if name in theirs and inspect.isfunction(mine):
            assert names_of(theirs[name].args) == list(inspect.signature(mine).parameters), name
            compared += 1
    assert compared >= 2


def test_methods_that_are_inherited_or_called(source):
    tree = source(ATTENTION)
    impl = methods_of(tree, THEIR_CLASSES["impl"])
    assert {"forward", "forward_impl", "update_graph_params"} <= set(impl)
    called = {n.attr for n in ast.walk(impl["forward_impl"]) if isinstance(n, ast.Attribute)}
    assert {"forward_fused_infer_attention", "forward_paged_attention"} <= called
    called = {n.attr for n in ast.walk(impl["forward"]) if isinstance(n, ast.Attribute)}
    assert {"reshape_and_cache", "forward_impl", "key_cache", "value_cache"} <= called
    assert "build_for_graph_capture" in methods_of(tree, THEIR_CLASSES["builder"])
    functions = {
        n.name for n in source("attention/utils.py").body if isinstance(n, ast.FunctionDef)
    }
    assert "notify_kv_cache_written" in functions


def test_metadata_that_is_read(source):
    tree = source(ATTENTION)
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "AscendMetadata")
    fields = {n.target.id for n in found.body if isinstance(n, ast.AnnAssign)}
    assert fields >= METADATA


def test_choice_that_is_replaced(source):
    from fa_triton.vllm.ascend.registration import PLAIN_BACKEND

    methods = methods_of(source("platform.py"), "NPUPlatform")
    choice = methods["get_attn_backend_cls"]
    texts = {n.value for n in ast.walk(choice) if isinstance(n, ast.Constant)}
    assert PLAIN_BACKEND in texts
    assert names_of(choice.args)[:3] == ["cls", "selected_backend", "attn_selector_config"]


def test_calls_of_kda(source, request):
    from fa_triton.vllm.kda import ascend_calls

    tree = source("ops/kda.py")
    if tree is None:
        assert request.node.callspec.params["source"] < "0.28"
        return
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    for name in ("run_chunk_kda", "run_recurrent_kda"):
        mine = inspect.signature(getattr(ascend_calls, name)).parameters
        assert names_of(functions[name].args) == list(mine)
