"""``incre_flash_attention`` as an operator of torch: fakes, graphs, torch's own checks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from fa_triton import incre_flash_attention
from tests.incre_flash_attention.batches import LIST, IncreBatch
from tests.torch_ops.incre_calls import BATCHES, mapped

OPERATOR = torch.ops.fa_triton.incre_flash_attention
QUICK = ("list", "int8 pages", "everything")
# the others run with the slow tests
SOME = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BATCHES]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def attend(**call: Any) -> tuple[torch.Tensor, ...]:
    """Call the public function; returns a tuple whatever was asked for."""
    result = incre_flash_attention(**call)
    return result if isinstance(result, tuple) else (result,)


def operator_call(call: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the operator for those of the function."""
    call = dict(call)
    for name in ("key", "value"):
        call[name] = call[name] if isinstance(call[name], list) else [call[name]]
    if isinstance(call["actual_seq_lengths"], torch.Tensor):
        call["lengths"] = call.pop("actual_seq_lengths")
    return call


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def assert_same(got: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


def test_a_schema_has_the_arguments_and_defaults_of_the_function() -> None:
    schema = OPERATOR.default._schema
    public = inspect.signature(incre_flash_attention).parameters
    assert {argument.name for argument in schema.arguments} == {*public, "lengths"}
    for argument in schema.arguments:
        if argument.name in public and argument.has_default_value():
            assert argument.default_value == public[argument.name].default, argument.name
    assert not schema.is_mutable


@pytest.mark.parametrize("case", SOME)
def test_torch_accepts_it(case: str) -> None:
    torch.library.opcheck(OPERATOR.default, (), operator_call(BATCHES[case].call()))


@pytest.mark.parametrize("case", SOME)
def test_operator_and_function_are_the_same(case: str) -> None:
    call = BATCHES[case].call()
    wanted = attend(**call)
    got = OPERATOR(**operator_call(call))
    assert_same(got[: len(wanted)], wanted)
    meta = attend(**mapped(call, lambda tensor: tensor.to("meta")))
    assert [form(tensor) for tensor in meta] == [form(tensor) for tensor in wanted]


@pytest.mark.parametrize("case", SOME)
def test_sizes_that_are_symbols(case: str) -> None:
    """Every size is a symbol, and no size is compared with another or with a number."""
    call = BATCHES[case].call()
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    fakes = mapped(call, functools.partial(mode.from_tensor, static_shapes=False))
    before = len(environment.guards)
    results = attend(**fakes)
    assert len(environment.guards) == before
    assert any(isinstance(size, torch.SymInt) for size in results[0].shape)
    for result, wanted in zip(results, attend(**call), strict=True):
        assert result.dtype == wanted.dtype
        assert tuple(map(int, result.shape)) == tuple(wanted.shape)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"input_layout": "SBH"}, ValueError, "`input_layout` must be one of"),
        ({"query": torch.ones(2, 1, 32)}, TypeError, "`query` must have dtype"),
        ({"key": torch.ones(2, 9, 16)}, TypeError, "`key` must have the dtype of query"),
        ({"query": torch.ones(2, 2, 1, 16).half()}, ValueError, "`query` must have shape"),
        ({"inner_precise": 2}, ValueError, "`inner_precise` must be"),
        ({"masked_row": "one"}, ValueError, "`masked_row` must be one of"),
    ],
    ids=["layout", "query", "key", "rank", "precise", "row"],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_rules_that_need_no_sizes(
    changes: dict[str, Any], error: type[Exception], says: str, symbolic: bool
) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    call = IncreBatch((9, 9), lengths="none").call() | changes
    fakes = mapped(call, functools.partial(mode.from_tensor, static_shapes=not symbolic))
    with pytest.raises(error, match=says):
        incre_flash_attention(**fakes)


@pytest.mark.parametrize("case", SOME)
def test_every_call_compiles(case: str) -> None:
    call = BATCHES[case].call()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert_same(compiled(**call), attend(**call))


@pytest.mark.parametrize("lengths", ["device", "host"])
def test_one_graph_for_all_batches_and_lengths(
    monkeypatch: pytest.MonkeyPatch, lengths: str
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=counter)
    counts = set()
    for size, room in ((3, 9), (3, 30), (3, 5)) if lengths == "host" else ((3, 9), (5, 30), (7, 5)):
        kv_lens = tuple((room - 2 * b) % (room + 1) for b in range(size))
        call = IncreBatch(
            kv_lens, heads=(4, 2), spare=2, lengths=lengths, mask="2", options={"softcap": 9.0}
        ).call()
        assert_same(compiled(**call), attend(**call))
        counts.add(counter.frame_count)
    assert len(counts) == 1


def test_a_list_of_other_lengths_is_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for kv_lens in ((9, 30, 4), (5, 7, 40)):
        call = IncreBatch(kv_lens, heads=(2, 1), cache=LIST, lengths="device").call()
        assert_same(compiled(**call), attend(**call))


class Seen(TorchDispatchMode):
    """Records the operators that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    call = BATCHES["dense"].call()
    with Seen() as seen:
        incre_flash_attention(**call)
    assert "fa_triton.incre_flash_attention.default" in seen.names

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the call went through torch.ops")

    monkeypatch.setattr(torch.ops.fa_triton, "incre_flash_attention", fail)
    incre_flash_attention(**call)


@pytest.mark.parametrize("through_ops", [False, True])
def test_gradients_and_vmap_are_refused(through_ops: bool) -> None:
    call = BATCHES["dense"].call()

    def run(**changes: Any) -> Any:
        arguments = call | changes
        return OPERATOR(**operator_call(arguments)) if through_ops else attend(**arguments)

    leaf = call["query"].clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="attention is forward only"):
        run(query=leaf)
    with torch.no_grad():
        run(query=leaf)
    with torch.inference_mode():
        run()
    with pytest.raises(NotImplementedError, match=r"torch\.vmap over attention is not built"):
        torch.vmap(lambda query: run(query=query)[0])(call["query"][None])
