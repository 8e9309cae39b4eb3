"""KDA calls beside those of the installed vLLM and vllm-ascend, and their rebound modules."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys

import pytest
import torch

from tests.vllm_adapter.kda_calls import assert_close, make_kda_step

# Which of our bindings exist, and what the layers of Kimi-Linear import, per vLLM.
MODULES = {
    (0, 23): {"vllm.model_executor.layers.fla.ops.kda"},
    (0, 30): {
        "vllm.third_party.flash_linear_attention.ops.kda",
        "vllm.models.kimi_k3.nvidia.ops.third_party.kda.chunk",
        "vllm.models.kimi_k3.nvidia.ops.third_party.kda.fused_recurrent",
        "vllm.model_executor.layers.mamba.ops.gather_initial_states",
        "vllm_ascend.ops.kda",
    },
}


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_modules_of_this_version(version):
    from fa_triton.vllm.kda.modules import BINDINGS

    assert {name for name in BINDINGS if is_there(name)} == MODULES[version]


@pytest.fixture(scope="module")
def bound(vllm_ascend, version):
    """Our functions in the modules, with what they replaced."""
    from fa_triton.vllm.kda import bind_kda
    from fa_triton.vllm.kda.modules import BINDINGS

    # loaded before and after: both ways of rebinding
    early = sorted(MODULES[version])[0]
    importlib.import_module(early)
    bind_kda()
    found = {}
    for name in MODULES[version]:
        module = importlib.import_module(name)
        for function in BINDINGS[name]:
            if hasattr(module, function):
                found[f"{name}.{function}"] = getattr(module, function)
    return found


def test_every_function_of_these_modules_is_ours(bound, version):
    assert len(bound) == {(0, 23): 4, (0, 30): 11}[version]
    for name, function in bound.items():
        theirs = inspect.unwrap(function)
        assert theirs.__code__.co_filename == sys.modules[name.rpartition(".")[0]].__file__
        assert function.__code__.co_filename.endswith("modules.py")


def test_we_take_every_argument_that_theirs_takes(bound):
    from fa_triton.vllm.kda import activated_calls, ascend_calls, operands, raw_calls
    from fa_triton.vllm.kda.modules import KIMI_K3

    raw = f"{KIMI_K3}."
    ours = {
        "chunk_kda": activated_calls.chunk_kda,
        "chunk_kda_with_fused_gate": activated_calls.chunk_kda_with_activated_beta,
        "fused_recurrent_kda": activated_calls.fused_recurrent_kda_with_activated_gate,
        "fused_kda_gate": activated_calls.fused_kda_gate,
        "gather_initial_states": operands.gathered_states,
        "run_chunk_kda": ascend_calls.run_chunk_kda,
        "run_recurrent_kda": ascend_calls.run_recurrent_kda,
        raw + "chunk.chunk_kda_with_fused_gate": raw_calls.chunk_kda_with_raw_beta,
        raw + "fused_recurrent.fused_recurrent_kda": raw_calls.fused_recurrent_kda_with_raw_gate,
        raw + "fused_recurrent.fused_recurrent_kda_packed_decode": (
            raw_calls.fused_recurrent_kda_packed_decode
        ),
    }
    for name, function in bound.items():
        mine = ours.get(name) or ours[name.rpartition(".")[2]]
        theirs = inspect.signature(inspect.unwrap(function)).parameters
        taken = inspect.signature(mine).parameters
        keywords = [p for p in theirs.values() if p.kind is not p.VAR_KEYWORD]
        assert {p.name for p in keywords} <= set(taken), name
        positional = [p.name for p in keywords if p.kind is p.POSITIONAL_OR_KEYWORD]
        order = [n for n in taken if n in positional]
        assert order == positional, name
        required = {p.name for p in taken.values() if p.default is p.empty and p.kind is not
                    p.VAR_KEYWORD}  # fmt: skip
        assert required <= set(theirs), name


def test_layer_of_kimi_linear_calls_ours(bound, version):
    if version >= (0, 30):
        package = importlib.import_module("vllm.models.kimi_k3.nvidia.ops.third_party.kda")
        names = (
            "chunk_kda_with_fused_gate",
            "fused_recurrent_kda",
            "fused_recurrent_kda_packed_decode",
        )
    else:
        package = importlib.import_module(
            "vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn"
        )
        names = ("chunk_kda_with_fused_gate", "fused_recurrent_kda", "fused_kda_gate")
    ours = set(map(id, bound.values()))
    assert all(id(getattr(package, name)) in ours for name in names)


def test_prefill_of_vllm_ascend(bound, version):
    if version < (0, 28):
        pytest.skip("vllm-ascend has a KDA layer of its own from 0.28 on")
    from vllm_ascend.ops.kda import run_chunk_kda, run_recurrent_kda

    step = make_kda_step([70, 3])
    starts, indices = [0, 70, 73], [0, 0, 0, 1, 1, 0]
    out, states = run_chunk_kda(
        step.q, step.k, step.v, step.raw_g, step.beta, step.states, starts, indices,
        step.A_log, step.dt_bias, lower_bound=-5.0,
    )  # fmt: skip
    expected, final = step.answer(-5.0)
    assert_close(step, out, expected)
    torch.testing.assert_close(states.double(), final, atol=2e-2, rtol=2e-2)

    step = make_kda_step([1, 1, 1])
    expected, _ = step.answer()
    out = run_recurrent_kda(
        step.q, step.k, step.v, step.raw_g, step.beta, step.pool, step.starts, step.slots,
        step.A_log, step.dt_bias, lower_bound=None,
    )  # fmt: skip
    assert_close(step, out, expected)
