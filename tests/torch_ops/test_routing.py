"""Which calls torch sees, and what is refused inside its function transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fa_triton import flash_attn, flash_attn_metadata, merge_attn_states
from fa_triton.ops import routing
from tests.torch_ops.calls import dense, random

BOUNDS = {"batch_size": 3, "max_seqlen_q": 8, "max_seqlen_kv": 16}


class Seen(TorchDispatchMode):
    """Records the operators that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def states() -> tuple[torch.Tensor, ...]:
    out, lse = random(6, 4, 64), random(4, 6, dtype=torch.float32)
    return out, lse, out, lse


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("flash_attn", lambda: flash_attn(**dense().arguments)),
        ("flash_attn_metadata", lambda: flash_attn_metadata(4, 2, 64, **BOUNDS)),
        ("merge_attn_states", lambda: merge_attn_states(*states())),
    ],
)
def test_a_mode_sees_one_operator(name: str, call: Callable[[], Any]) -> None:
    with Seen() as seen:
        call()
    assert f"fa_triton.{name}.default" in seen.names


def test_eager_calls_stay_out_of_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the call went through torch.ops")

    for name in ("flash_attn", "flash_attn_metadata", "merge_attn_states"):
        monkeypatch.setattr(torch.ops.fa_triton, name, fail)
    q, k, v = dense().tensors.values()
    metadata = flash_attn_metadata(4, 2, 64, batch_size=2, max_seqlen_q=8, max_seqlen_kv=16)
    flash_attn(q, k, v, metadata=metadata)
    merge_attn_states(*states())
    with torch.no_grad():
        flash_attn(torch.nn.Parameter(q), k, v)
    with torch.inference_mode():
        flash_attn(q.clone(), k, v)


class Wrapper(torch.Tensor):
    """A subclass, which may intercept operators."""


def test_subclasses_go_through_the_dispatcher() -> None:
    q, k, v = dense().tensors.values()
    assert routing.goes_through_dispatcher(q.as_subclass(Wrapper), k, v)
    out, _ = flash_attn(q.as_subclass(Wrapper), k, v)
    assert torch.equal(out.as_subclass(torch.Tensor), flash_attn(q, k, v)[0])


def test_functionalization_keeps_the_result() -> None:
    q, k, v = dense().tensors.values()
    out = torch.func.functionalize(lambda q: flash_attn(q, k, v)[0])(q)
    assert torch.equal(out, flash_attn(q, k, v)[0])


@pytest.mark.parametrize("attend", [flash_attn, torch.ops.fa_triton.flash_attn])
@pytest.mark.parametrize("batched", ["q", "k", "seqused_kv", "sinks"])
def test_vmap_is_refused(attend: Callable[..., Any], batched: str) -> None:
    used = torch.tensor([3, 4], dtype=torch.int32)
    call = dense().tensors | {"seqused_kv": used, "sinks": random(4, dtype=torch.float32)}

    def one(value: torch.Tensor) -> torch.Tensor:
        return attend(**(call | {batched: value}))[0]

    with pytest.raises(NotImplementedError, match=r"torch\.vmap over attention is not built"):
        torch.vmap(one)(call[batched][None])


def test_vmap_over_a_merge_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"torch\.vmap"):
        torch.vmap(merge_attn_states)(*(part[None] for part in states()))


def test_derivatives_by_functions_are_refused() -> None:
    q, k, v = (tensor.float() for tensor in dense().tensors.values())
    with pytest.raises(NotImplementedError, match="attention is forward only"):
        torch.func.grad(lambda q: flash_attn(q, k, v)[0].sum())(q)
    with pytest.raises(NotImplementedError, match="attention is forward only"):
        torch.func.jvp(lambda q: flash_attn(q, k, v)[0], (q,), (q,))


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks"])
@pytest.mark.parametrize("attend", [flash_attn, torch.ops.fa_triton.flash_attn])
def test_gradients_are_refused(attend: Callable[..., Any], name: str) -> None:
    call = dense().tensors | {"sinks": random(4, dtype=torch.float32)}
    call[name] = call[name].clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="attention is forward only"):
        attend(**call)
    with torch.no_grad():
        out, _ = attend(**call)
    assert not out.requires_grad
    with torch.inference_mode():
        attend(**call)


@pytest.mark.parametrize("merge", [merge_attn_states, torch.ops.fa_triton.merge_attn_states])
def test_gradients_of_a_merge_are_refused(merge: Callable[..., Any]) -> None:
    out, lse, *rest = states()
    with pytest.raises(NotImplementedError, match="attention is forward only"):
        merge(out.clone().requires_grad_(), lse, *rest)
    with torch.no_grad():
        merge(out.clone().requires_grad_(), lse, *rest)
