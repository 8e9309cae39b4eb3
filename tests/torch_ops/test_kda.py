"""Kimi Delta Attention as operators of torch: schemas, fakes, one graph, pools that are mutated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import fa_triton.ops  # noqa: F401 registers the operators
from fa_triton import chunk_kda, chunk_kda_fwd, kda_gate_cumsum
from tests.kda.problems import OUTPUTS, KdaProblem

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

OPS = torch.ops.fa_triton
ROWS = ("q", "k", "v", "g", "beta")

DENSE = KdaProblem(head_dims=(64, 32), heads=(1, 2), lengths=(70, 70))
PACKED = DENSE.but(lengths=(3, 0, 65), packed=True, layout="TND", l2norm=True, raw_beta=True)
PROBLEMS = [
    DENSE,
    DENSE.but(layout="BNSD", gate="given", has_initial_state=False),
    PACKED,
    PACKED.but(layout="NTD", gate="bounded", state_v_first=True),
]
GATE_OPTIONS = ("A_log", "dt_bias", "cu_seqlens", "use_gate_in_kernel", "safe_gate", "lower_bound")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def gate_call(problem: KdaProblem) -> dict[str, Any]:
    arguments = problem.arguments()
    options = {name: arguments[name] for name in GATE_OPTIONS if name in arguments}
    return {"g": arguments["g"], "chunk_size": 64, "layout": problem.layout, **options}


def pool_call(problem: KdaProblem) -> dict[str, Any]:
    """Return a call of ``chunk_kda`` with the states in a pool of seven slots."""
    arguments = problem.arguments()
    states = arguments["initial_state"]
    pool = torch.full((7, *states.shape[1:]), 3.0)
    indices = torch.arange(len(states), 0, -1, dtype=torch.int32)
    pool[indices] = states
    has_state = torch.ones(len(states), dtype=torch.bool)
    has_state[0] = False
    return arguments | {
        "initial_state": pool,
        "ssm_state_indices": indices,
        "has_initial_state": has_state,
        "output_final_state": True,
    }


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_torch_accepts_chunk_kda_fwd(problem: KdaProblem) -> None:
    results = [name for name in OUTPUTS if name != "h" or not problem.packed]
    torch.library.opcheck(OPS.chunk_kda_fwd.default, (), problem.arguments() | {"results": results})


def test_torch_accepts_sequences_without_a_state() -> None:
    arguments = PACKED.arguments() | {"results": ["attn_out", "final_state"]}
    arguments["has_initial_state"] = torch.tensor([True, True, False])
    torch.library.opcheck(OPS.chunk_kda_fwd.default, (), arguments)


@pytest.mark.parametrize("problem", [PROBLEMS[0], PROBLEMS[3]], ids=str)
def test_torch_accepts_kda_gate_cumsum(problem: KdaProblem) -> None:
    torch.library.opcheck(OPS.kda_gate_cumsum.default, (), gate_call(problem))


def test_torch_accepts_chunk_kda_over_a_pool() -> None:
    torch.library.opcheck(OPS.chunk_kda_over_pool_.default, (), pool_call(PACKED))


def test_only_the_pool_is_mutated() -> None:
    mutated = {
        argument.name
        for argument in OPS.chunk_kda_over_pool_.default._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    assert mutated == {"initial_state"}
    for name in ("chunk_kda_fwd", "kda_gate_cumsum"):
        schema = getattr(OPS, name).default._schema
        assert not schema.is_mutable
        assert all(value.alias_info is None for value in (*schema.arguments, *schema.returns))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_operator_and_function_are_the_same(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    wanted = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    got = OPS.chunk_kda_fwd(**arguments, results=list(OUTPUTS))
    for name, result in zip(OUTPUTS, got, strict=True):
        assert torch.equal(result, getattr(wanted, name)), name
    call = gate_call(problem)
    assert torch.equal(OPS.kda_gate_cumsum(**call), kda_gate_cumsum(**call))


def test_operator_and_function_write_the_same_pool() -> None:
    wanted_call, call = pool_call(PACKED), pool_call(PACKED)
    wanted, wanted_pool = chunk_kda(**wanted_call)
    got = OPS.chunk_kda_over_pool_(**call)
    assert wanted_pool is wanted_call["initial_state"]
    assert torch.equal(got, wanted)
    assert torch.equal(call["initial_state"], wanted_pool)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_fakes_have_the_form_of_real_results(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    # the number of chunks of a packed batch is known with its chunk indices only
    if problem.packed:
        arguments["chunk_indices"] = torch.tensor([[0, 0], [2, 0], [2, 1]])
    real = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    with FakeTensorMode() as mode:
        fake_arguments = {
            name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        fake = chunk_kda_fwd(**fake_arguments, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert form(getattr(fake, name)) == form(getattr(real, name)), name
    assert fake.initial_state is fake_arguments.get("initial_state")


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_meta_tensors_give_shapes(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    real, _ = chunk_kda(**arguments)
    meta = {
        name: value.to("meta") if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    out, state = chunk_kda(**meta)
    assert out.device.type == "meta"
    assert (out.shape, out.dtype) == (real.shape, real.dtype)
    assert state is None


def test_the_states_of_a_packed_batch_have_an_unknown_number_of_chunks() -> None:
    arguments = PACKED.arguments()
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fake = {
            name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        h = chunk_kda_fwd(**fake, outputs=("h",)).h
    assert h is not None
    assert h.shape[1:] == (2, 64, 32)
    assert isinstance(h.shape[0], torch.SymInt)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_call_compiles_to_one_graph(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    options = {name: x for name, x in arguments.items() if name not in tensors}

    def attend(**given: torch.Tensor) -> Any:
        results = chunk_kda_fwd(**given, **options, output_final_state=True)
        return results.attn_out, results.final_state, results.Akk

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(compiled(**tensors), attend(**tensors), strict=True):
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride()


def test_one_graph_for_all_packed_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    options = {
        name: value
        for name, value in PACKED.arguments().items()
        if name not in (*ROWS, "cu_seqlens", "initial_state")
    }

    def attend(*tensors: torch.Tensor) -> Any:
        rows, cu_seqlens, initial_state = tensors[:5], tensors[5], tensors[6]
        return chunk_kda(
            *rows,
            cu_seqlens=cu_seqlens,
            initial_state=initial_state,
            output_final_state=True,
            **options,
        )

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=counter)
    count = None
    for lengths in ((3, 0, 65), (70, 8), (1, 2, 3, 4, 200), (130, 0)):
        arguments = PACKED.but(lengths=lengths).arguments()
        tensors = [arguments[name] for name in (*ROWS, "cu_seqlens", "initial_state")]
        for got, wanted in zip(compiled(*tensors), attend(*tensors), strict=True):
            assert torch.equal(got, wanted)
        count = count or counter.frame_count
        assert counter.frame_count == count


def test_a_graph_over_a_pool_writes_it() -> None:
    options = {
        name: value
        for name, value in pool_call(PACKED).items()
        if not isinstance(value, torch.Tensor)
    }

    def attend(**tensors: torch.Tensor) -> torch.Tensor:
        out, pool = chunk_kda(**tensors, **options)
        # reads the pool after it was written, and writes it again
        again, _ = chunk_kda(**tensors, **options)
        assert pool is not None
        return torch.cat((out, again)).float().sum() + pool.sum()

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    wanted_call, call = (
        {name: x for name, x in pool_call(PACKED).items() if isinstance(x, torch.Tensor)}
        for _ in range(2)
    )
    wanted = attend(**wanted_call)
    got = compiled(**call)
    assert torch.equal(got, wanted)
    assert torch.equal(call["initial_state"], wanted_call["initial_state"])
    assert not torch.equal(call["initial_state"], pool_call(PACKED)["initial_state"])


def test_lengths_in_a_list_inside_a_graph() -> None:
    arguments = PACKED.arguments()
    del arguments["cu_seqlens"]
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    options = {name: x for name, x in arguments.items() if name not in tensors}

    def attend(**given: torch.Tensor) -> torch.Tensor:
        return chunk_kda(**given, **options, cu_seqlens=PACKED.cu_seqlens)[0]

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**tensors), attend(**tensors))


@pytest.mark.parametrize("name", ["q", "g"])
def test_gradients_are_refused_in_a_graph(name: str) -> None:
    arguments = DENSE.arguments()
    arguments[name].requires_grad_()
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    options = {name: x for name, x in arguments.items() if name not in tensors}
    compiled = torch.compile(
        lambda **given: chunk_kda(**given, **options)[0].sum(), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match="Kimi Delta Attention is forward only"):
        compiled(**tensors)
    with torch.no_grad():
        compiled(**tensors)


def test_vmap_is_refused() -> None:
    arguments = DENSE.arguments()
    rows = [torch.stack([arguments[name]] * 2) for name in ROWS]
    options = {name: value for name, value in arguments.items() if name not in ROWS}
    with pytest.raises(NotImplementedError):
        torch.vmap(lambda *given: chunk_kda(*given, **options)[0])(*rows)
