"""Results on tensors without values: the shapes, dtypes, strides and errors of a real call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fa_triton import flash_attn, flash_attn_metadata, merge_attn_states
from tests.torch_ops.calls import CALLS, dense, ints, packed, random


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def assert_same_forms(got: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    assert [form(tensor) for tensor in got] == [form(tensor) for tensor in wanted]


@pytest.mark.parametrize("case", CALLS)
def test_meta_tensors(case: str) -> None:
    call = CALLS[case]
    results = flash_attn(**call.mapped(lambda tensor: tensor.to("meta")))
    assert all(tensor.is_meta for tensor in results)
    assert_same_forms(results, flash_attn(**call.arguments))


def test_fake_tensors() -> None:
    for call in CALLS.values():
        with FakeTensorMode() as mode:
            results = flash_attn(**call.mapped(mode.from_tensor))
        assert all(isinstance(tensor, FakeTensor) for tensor in results)
        assert all(tensor.device == torch.device("cpu") for tensor in results)
        assert_same_forms(results, flash_attn(**call.arguments))
        outside_of_the_mode = flash_attn(**call.mapped(mode.from_tensor))
        assert_same_forms(outside_of_the_mode, results)


def test_sizes_that_are_symbols() -> None:
    """Every size is a symbol, and no size is compared with another or with a number."""
    for call in CALLS.values():
        environment = ShapeEnv()
        mode = FakeTensorMode(shape_env=environment)
        arguments = call.mapped(functools.partial(mode.from_tensor, static_shapes=False))
        before = len(environment.guards)
        out, lse = flash_attn(**arguments)
        assert len(environment.guards) == before
        assert any(isinstance(size, torch.SymInt) for size in out.shape)
        wanted, wanted_lse = flash_attn(**call.arguments)
        # turning a symbol into a number is a comparison, so this comes last
        assert tuple(map(int, out.shape)) == tuple(wanted.shape)
        assert tuple(map(int, lse.shape)) == tuple(wanted_lse.shape)


def test_a_plan_has_a_length_of_its_own() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    lengths = {"cu_seqlens_q": ints(0, 3, 3, 12), "cu_seqlens_kv": ints(0, 10, 25, 40)}
    fakes = {name: mode.from_tensor(tensor) for name, tensor in lengths.items()}
    layouts = {"layout_q": "TND", "layout_kv": "TND", "layout_out": "TND"}
    metadata = flash_attn_metadata(4, 2, 64, **fakes, **layouts)
    (words,) = metadata.shape
    assert isinstance(words, torch.SymInt)
    assert metadata.dtype == torch.int32
    call = packed(return_softmax_lse=True)
    results = flash_attn(**call.mapped(mode.from_tensor), metadata=metadata)
    assert_same_forms(results, flash_attn(**call.arguments))


def test_a_plan_without_length_tensors_goes_where_it_is_told() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        metadata = flash_attn_metadata(
            4, 2, 64, batch_size=3, max_seqlen_q=8, max_seqlen_kv=16, device="cuda"
        )
    assert metadata.device.type == "cuda"


@pytest.mark.parametrize("layout", ["TND", "BSND", "BNSD"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_merged_states(layout: str, dtype: torch.dtype) -> None:
    lse = random(4, 6, dtype=torch.float32)
    out = random(6, 4, 64, dtype=dtype)
    if layout != "TND":
        lse, out = lse.expand(2, -1, -1), out.expand(2, -1, -1, -1)
        out = out.transpose(1, 2) if layout == "BNSD" else out
    parts = (out, lse, out, lse)
    results = merge_attn_states(*(part.to("meta") for part in parts), layout=layout)
    assert_same_forms(results, merge_attn_states(*parts, layout=layout))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"layout_q": "bsnd"}, ValueError, "`layout_q` must be one of"),
        ({"k": random(2, 16, 2, 64, dtype=torch.float32)}, TypeError, "`k` must have the dtype"),
        ({"v": random(2, 16, 64)}, ValueError, "`v` must have 4 axes"),
        ({"mask_mode": 1}, ValueError, "`mask_mode` must be 0"),
        ({"win_right": 1}, ValueError, "`win_right` must be -1"),
    ],
    ids=["layout", "dtype", "rank", "mask", "window"],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_rules_that_need_no_sizes(
    changes: dict[str, Any], error: type[Exception], says: str, symbolic: bool
) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    arguments = {
        name: mode.from_tensor(value, static_shapes=not symbolic)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in (dense().arguments | changes).items()
    }
    with pytest.raises(error, match=says):
        flash_attn(**arguments)


@pytest.mark.parametrize("change", [lambda k: k[:, :, :1].expand(-1, -1, 3, -1), lambda k: k[:1]])
def test_rules_of_sizes_that_are_known(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    call = dense().mapped(lambda tensor: tensor.to("meta"))
    call["k"] = change(call["k"])
    with pytest.raises(ValueError, match="must agree with k"):
        flash_attn(**call)
