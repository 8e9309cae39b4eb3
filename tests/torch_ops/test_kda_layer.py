"""Operators of a KDA layer as torch knows them: schemas, torch's own checks, compiled graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # imported once, not in every child
from torch._subclasses.fake_tensor import FakeTensorMode

import fa_triton
import fa_triton.ops
from fa_triton import causal_conv1d_fn, causal_conv1d_update, recurrent_kda, rms_norm_gated
from tests.kda_layer.recurrent_calls import Case, make

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

OPS = torch.ops.fa_triton
POOL = Case(lengths=(1, 2), slots=4, indices=(3, 1), heads=1, v_heads=2)
STEPS = POOL.but(slots=5, indices=((3, 1), (4, 0)), accepted=(2, 1))
MUTATED = {
    "recurrent_kda_": ["state"],
    "recurrent_kda": [],
    "causal_conv1d_fn": ["conv_states"],
    "causal_conv1d_update": ["conv_state"],
    "rms_norm_gated": [],
}
OWN_FLAGS = {"inplace_final_state", "output_final_state"}


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def prefill() -> dict[str, Any]:
    return {
        "x": rand(7, 32).t(),
        "weight": rand(32, 4, seed=1),
        "bias": rand(32, seed=2),
        "conv_states": rand(4, 3, 32, seed=3).transpose(1, 2),
        "has_initial_state": torch.tensor([True, False]),
        "cache_indices": ints(2, 0),
        "query_start_loc": ints(0, 5, 7),
    }


def decode() -> dict[str, Any]:
    return {
        "x": rand(2, 32, 2),
        "conv_state": rand(4, 5, 32, seed=3).transpose(1, 2),
        "weight": rand(32, 4, seed=1),
        "activation": "silu",
        "conv_state_indices": ints(2, 0),
        "num_accepted_tokens": ints(2, 1),
    }


def packed_decode() -> dict[str, Any]:
    return decode() | {"x": rand(3, 32), "query_start_loc": ints(0, 1, 3), "max_query_len": 2}


def norm() -> dict[str, Any]:
    return {"x": rand(5, 2, 64), "gate": rand(5, 2, 64, seed=1), "weight": rand(64, seed=2)}


@pytest.mark.parametrize("name", MUTATED)
def test_a_schema_has_the_arguments_and_defaults_of_its_function(name: str) -> None:
    schema = getattr(OPS, name).default._schema
    public = inspect.signature(getattr(fa_triton, name.removesuffix("_"))).parameters
    named = {argument.name for argument in schema.arguments}
    assert named | OWN_FLAGS >= set(public) >= named
    for argument in schema.arguments:
        if argument.has_default_value():
            assert argument.default_value == public[argument.name].default, argument.name
    mutated = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    assert mutated == MUTATED[name]
    assert all(value.alias_info is None for value in schema.returns)


@pytest.mark.parametrize("case", [POOL, STEPS], ids=["pool", "steps"])
def test_torch_accepts_recurrent_kda_in_place(case: Case) -> None:
    torch.library.opcheck(OPS.recurrent_kda_.default, (), make(case).arguments)


@pytest.mark.parametrize("output_final_state", [False, True])
def test_torch_accepts_recurrent_kda(output_final_state: bool) -> None:
    arguments = make(POOL).arguments | {"output_final_state": output_final_state}
    torch.library.opcheck(OPS.recurrent_kda.default, (), arguments)


def test_torch_accepts_the_prefill_convolution() -> None:
    torch.library.opcheck(OPS.causal_conv1d_fn.default, (), prefill())
    torch.library.opcheck(OPS.causal_conv1d_fn.default, (rand(2, 32, 9), rand(32, 4, seed=1)))


@pytest.mark.parametrize("call", [decode, packed_decode])
def test_torch_accepts_the_decode_convolution(call: Callable[[], dict[str, Any]]) -> None:
    torch.library.opcheck(OPS.causal_conv1d_update.default, (), call())


def test_torch_accepts_the_gated_norm() -> None:
    torch.library.opcheck(OPS.rms_norm_gated.default, (), norm())


def layer_step(
    recurrent: dict[str, Any], convolution: dict[str, Any], gated: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """A graph with all four operators; states are updated on the way."""
    x = causal_conv1d_update(**convolution)
    out, state = recurrent_kda(**recurrent, output_final_state=True)
    y = rms_norm_gated(gated["x"] + x.mean() + out.mean(), gated["gate"], gated["weight"])
    assert state is not None
    return x, out, state.sum(), y


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_step_is_one_graph_and_updates_the_states(backend: str) -> None:
    plain, traced = make(STEPS).arguments, make(STEPS).arguments
    plain_conv, traced_conv = decode(), decode()
    wanted = layer_step(plain, plain_conv, norm())
    step = torch.compile(layer_step, fullgraph=True, backend=backend)
    for got, want in zip(step(traced, traced_conv, norm()), wanted, strict=True):
        torch.testing.assert_close(got, want)
    assert torch.equal(traced["state"], plain["state"])
    assert torch.equal(traced_conv["conv_state"], plain_conv["conv_state"])


def test_a_graph_serves_other_sizes() -> None:
    compiled = torch.compile(causal_conv1d_fn, fullgraph=True, backend="aot_eager", dynamic=True)
    weight = rand(32, 4, seed=1)
    for tokens in (7, 12, 20):
        x, starts = rand(tokens, 32).t(), ints(0, 3, tokens)
        got = compiled(x, weight, query_start_loc=starts)
        assert torch.equal(got, causal_conv1d_fn(x, weight, query_start_loc=starts))
    norm_graph = torch.compile(rms_norm_gated, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 8):
        x, gate = rand(rows, 64), rand(rows, 64, seed=1)
        assert torch.equal(norm_graph(x, gate, x[0]), rms_norm_gated(x, gate, x[0]))
    step = torch.compile(recurrent_kda, fullgraph=True, backend="aot_eager", dynamic=True)
    for count in (2, 3):
        case = POOL.but(lengths=(1,) * count, indices=tuple(range(count)))
        plain, traced = make(case), make(case)
        assert torch.equal(traced(step)[0], plain(recurrent_kda)[0])
        assert torch.equal(traced.state, plain.state)


def test_fakes_know_shapes_without_running() -> None:
    with FakeTensorMode() as mode:
        fake: dict[str, Any] = {
            name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for name, value in make(POOL).arguments.items()
        }
        out, final = recurrent_kda(**fake, inplace_final_state=False, output_final_state=True)
        assert out.shape == (1, 3, 2, 64)
        assert final is not None
        assert final.shape == (2, 2, 64, 64)
    rows = torch.empty(3, 64, device="meta")
    assert rms_norm_gated(rows, rows, rows[0]).is_meta


def test_gradients_are_refused() -> None:
    arguments = make(POOL).arguments
    arguments["q"] = arguments["q"].requires_grad_()
    for call in (recurrent_kda, OPS.recurrent_kda_):
        with pytest.raises(NotImplementedError, match="forward only"):
            call(**arguments)
    with pytest.raises(NotImplementedError, match="Kimi Delta Attention is forward only"):
        OPS.recurrent_kda(**arguments)
    x = rand(4, 64).requires_grad_()
    for call in (rms_norm_gated, OPS.rms_norm_gated):
        with pytest.raises(NotImplementedError, match="the gated norm is forward only"):
            call(x, x, rand(64))
    with pytest.raises(NotImplementedError, match="forward only"):
        OPS.causal_conv1d_fn(x.t(), rand(64, 4))
