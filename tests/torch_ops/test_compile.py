"""``torch.compile(fullgraph=True)``: one graph for all lengths, errors as in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend

from fa_triton import flash_attn, flash_attn_metadata, merge_attn_states
from tests.flash_attn.batches import starts
from tests.oracle import assert_accurate
from tests.torch_ops.calls import CALLS, SOME_CALLS, dense, random

PACKED = {"layout_q": "TND", "layout_kv": "TND", "layout_out": "TND"}
OPTIONS = {**PACKED, "mask_mode": 3, "softmax_scale": 0.125, "return_softmax_lse": True}
# a size of 1 has a graph of its own, whatever the operator
PACKED_BATCHES = [
    ((3, 4), (30, 5)),
    ((7, 2, 9), (30, 40, 50)),
    ((1, 1, 1, 1), (100, 3, 9, 8)),
    ((40, 0), (41, 6)),
]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def packed_batch(q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> list[torch.Tensor]:
    q = random(sum(q_lens), 4, 64)
    k, v = (random(sum(kv_lens), 2, 64, seed=seed) for seed in (1, 2))
    return [q, k, v, starts(q_lens), starts(kv_lens)]


def attention(*batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, cu_q, cu_kv = batch
    return flash_attn(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, **OPTIONS)


def planned_attention(
    *batch: torch.Tensor, longest_q: int, longest_kv: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plan, attend in two layers, merge: all operators in one graph."""
    q, k, v, cu_q, cu_kv = batch
    lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv}
    bounds = {"max_seqlen_q": longest_q, "max_seqlen_kv": longest_kv}
    metadata = flash_attn_metadata(4, 2, 64, **lengths, **bounds, **PACKED, mask_mode=3)
    out_a, lse_a = flash_attn(q, k, v, metadata=metadata, **lengths, **bounds, **OPTIONS)
    out_b, lse_b = flash_attn(q + out_a, k, v, metadata=metadata, **lengths, **OPTIONS)
    return merge_attn_states(out_a, lse_a, out_b, lse_b)


def assert_same(got: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


def test_one_graph_for_all_packed_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend=counter)
    compiled(*packed_batch((5, 6), (9, 8)))
    count = counter.frame_count
    assert count >= 1
    for q_lens, kv_lens in PACKED_BATCHES:
        batch = packed_batch(q_lens, kv_lens)
        out, lse = compiled(*batch)
        assert_same((out, lse), attention(*batch))
        q, k, v, cu_q, cu_kv = batch
        assert_accurate(out, lse, q, k, v, cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, **OPTIONS)
    assert counter.frame_count == count


def test_one_graph_for_all_dense_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, used: torch.Tensor) -> Any:
        return flash_attn(q, k, v, seqused_kv=used, mask_mode=3, return_softmax_lse=True)

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    # sizes that are equal at first count as one symbol: the batch is unlike the heads
    for size, q_len, kv_len in ((3, 8, 16), (5, 5, 40), (6, 2, 300)):
        q, k, v = random(size, q_len, 4, 64), *(random(size, kv_len, 2, 64) for _ in range(2))
        used = torch.arange(size, dtype=torch.int32)
        assert_same(compiled(q, k, v, used), attend(q, k, v, used))


def test_all_operators_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    compiled = torch.compile(planned_attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for q_lens, kv_lens in PACKED_BATCHES:
        batch = packed_batch(q_lens, kv_lens)
        bounds = {"longest_q": max(q_lens), "longest_kv": max(kv_lens)}
        assert_same(compiled(*batch, **bounds), planned_attention(*batch, **bounds))


def test_lengths_become_dynamic_by_themselves() -> None:
    """Without ``dynamic=True`` torch compiles once more when the first length changes."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attention, fullgraph=True, backend=counter)
    for q_lens, kv_lens in PACKED_BATCHES[:2]:
        compiled(*packed_batch(q_lens, kv_lens))
    count = counter.frame_count
    for q_lens, kv_lens in PACKED_BATCHES[2:]:
        batch = packed_batch(q_lens, kv_lens)
        assert_same(compiled(*batch), attention(*batch))
    assert counter.frame_count == count


@pytest.mark.slow
def test_with_the_default_backend() -> None:
    compiled = torch.compile(planned_attention, fullgraph=True, dynamic=True)
    for q_lens, kv_lens in PACKED_BATCHES[:2]:
        batch = packed_batch(q_lens, kv_lens)
        bounds = {"longest_q": max(q_lens), "longest_kv": max(kv_lens)}
        assert_same(compiled(*batch, **bounds), planned_attention(*batch, **bounds))


@pytest.mark.parametrize("case", SOME_CALLS)
def test_every_call_compiles(case: str) -> None:
    call = CALLS[case]
    compiled = torch.compile(
        lambda **tensors: flash_attn(**tensors, **call.options), fullgraph=True, backend="aot_eager"
    )
    assert_same(compiled(**call.tensors), flash_attn(**call.arguments))


def test_an_exported_program_holds_the_operator() -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return flash_attn(q, k, v, mask_mode=3, return_softmax_lse=True)

    batch, q_len, kv_len = (torch.export.Dim(name) for name in ("batch", "q_len", "kv_len"))
    shapes = {
        "q": {0: batch, 1: q_len},
        "k": {0: batch, 1: kv_len},
        "v": {0: batch, 1: kv_len},
    }
    arguments = tuple(dense().tensors.values())
    program = torch.export.export(Attention(), arguments, dynamic_shapes=shapes)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.fa_triton.flash_attn.default in targets
    other = random(3, 5, 4, 64), random(3, 30, 2, 64), random(3, 30, 2, 64, seed=1)
    assert_same(program.module()(*other), Attention()(*other))


def test_without_gradients() -> None:
    q, k, v = dense().tensors.values()
    leaf = q.clone().requires_grad_()
    compiled = torch.compile(lambda q: flash_attn(q, k, v)[0], fullgraph=True, backend="aot_eager")
    wanted = flash_attn(q, k, v)[0]
    with torch.no_grad():
        assert torch.equal(compiled(leaf), wanted)
    with torch.inference_mode():
        assert torch.equal(compiled(q), wanted)


@pytest.mark.parametrize("call", [flash_attn, torch.ops.fa_triton.flash_attn])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_gradients_are_refused(call: Callable[..., Any], fullgraph: bool) -> None:
    q, k, v = dense().tensors.values()
    leaf = q.clone().requires_grad_()
    compiled = torch.compile(
        lambda q: call(q, k, v)[0].sum(), fullgraph=fullgraph, backend="aot_eager"
    )
    with pytest.raises(Exception, match="attention is forward only") as caught:
        compiled(leaf)
    # without a graph break the compiler wraps the error
    assert fullgraph or type(caught.value) is NotImplementedError


def test_wrong_sizes_are_refused_when_the_graph_runs() -> None:
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    q, k, v, cu_q, cu_kv = packed_batch((3, 4), (30, 5))
    compiled(q, k, v, cu_q, cu_kv)
    with pytest.raises(ValueError, match=r"`cu_seqlens_kv\[-1\]` must be at most T = 35, got 36"):
        compiled(q, k, v, cu_q, cu_kv + torch.tensor([0, 0, 1], dtype=torch.int32))
    with pytest.raises(ValueError, match="`v` must agree with k"):
        compiled(q, k, v[:20], cu_q, cu_kv)
