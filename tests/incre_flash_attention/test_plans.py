"""One plan for all layers and steps: made by ``flash_attn_metadata``, no device read in a call."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch

from fa_triton import flash_attn_metadata, incre_flash_attention
from fa_triton.incremental_attention import calls
from tests.incre_flash_attention.accuracy import assert_accurate
from tests.incre_flash_attention.batches import DENSE, LIST, IncreBatch
from tests.incre_flash_attention.planning import plan_for

pytestmark = pytest.mark.usefixtures("nan_filled_memory")


BATCHES = {
    "dense": IncreBatch((70, 9, 0), heads=(4, 2), layout="BSH"),
    "BNSD": IncreBatch((70, 9, 0), heads=(4, 4), layout="BNSD", mask="2"),
    "drafts": IncreBatch((70, 9, 4), tokens=4, heads=(4, 2), layout="BSND"),
    "tree": IncreBatch((70, 9, 4), tokens=4, heads=(4, 2), layout="BNSD", mask="head tree"),
    "list": IncreBatch((70, 9, 0), heads=(4, 2), cache=LIST),
    "padded": IncreBatch((70, 9, 0), heads=(4, 2), left_padding=3, bias="one"),
    "pages": IncreBatch((70, 9, 0), heads=(8, 2), head_dim=128, cache="PA_BBND", page_size=48),
    "int8 pages": IncreBatch(
        (70, 9, 0), heads=(8, 2), cache="PA_NZ", page_size=32, quant="per_channel"
    ),
    "int8 tokens": IncreBatch((70, 9), cache="PA_BNBD", page_size=96, quant="per_token_head"),
    "D 512": IncreBatch((70, 9), heads=(2, 1), head_dim=512),
    "window": IncreBatch((70, 9, 0), heads=(4, 2), options={"win_left": 20}),
    "window of drafts": IncreBatch((70, 9, 4), tokens=3, heads=(4, 2), options={"win_left": 20}),
    "prefix": IncreBatch((70, 9, 0), heads=(4, 2), prefix=20, has_sinks=True),
}


QUICK = ("padded", "int8 pages", "window of drafts")
# the others run with the slow tests
SOME = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BATCHES]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("num_aic", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_a_plan_serves_a_call(name: str, num_aic: int | None) -> None:
    batch = BATCHES[name]
    metadata = plan_for(batch, 70, num_aic=num_aic)
    for lengths in ("host", "device"):
        call = batch.but(lengths=lengths).call() | {"return_softmax_lse": True}
        out, lse = incre_flash_attention(**call, metadata=metadata)
        assert_accurate(out, lse, call)


@pytest.mark.slow
def test_layers_and_steps_share_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths, padding, pages and masks change in place, as the buffers of a captured graph do."""

    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("the call planned")

    monkeypatch.setattr(calls, "plan_call", fail)
    shape = IncreBatch(
        (96, 96, 96), heads=(4, 2), cache="PA_BNBD", page_size=32, lengths="device", mask="2"
    )
    metadata = plan_for(shape, 96, num_aic=5)
    buffers = shape.call() | {"return_softmax_lse": True}
    for step, kv_lens in enumerate([(96, 96, 96), (1, 0, 64), (33, 96, 32)]):
        for layer in range(2):
            # fewer pages are used than the table has room for
            fresh = shape.but(kv_lens=kv_lens, spare=96 - max(kv_lens), seed=9 * step + layer)
            new = fresh.call()
            table = buffers["block_table"]
            table.fill_(10**9)
            pages = new["block_table"][:, : table.shape[1]]
            table[:, : pages.shape[1]].copy_(pages)
            buffers["actual_seq_lengths"].copy_(new["actual_seq_lengths"])
            buffers["query"].copy_(new["query"])
            mask = new["atten_mask"][:, : buffers["atten_mask"].shape[1]]
            buffers["atten_mask"][:, : mask.shape[1]].copy_(mask)
            call = buffers | {name: new[name] for name in ("key", "value")}
            out, lse = incre_flash_attention(**call, metadata=metadata)
            assert_accurate(out, lse, call)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [BATCHES["padded"], BATCHES["int8 pages"], BATCHES["prefix"]])
@pytest.mark.parametrize("is_planned", [False, True])
def test_lengths_on_a_device_stay_there(
    monkeypatch: pytest.MonkeyPatch, batch: IncreBatch, is_planned: bool
) -> None:
    """No value of a tensor reaches the host: a captured graph may hold the call."""
    metadata = plan_for(batch, 70) if is_planned else None
    call = batch.but(lengths="device").call() | {"metadata": metadata}
    wanted = incre_flash_attention(**call)

    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("the call read a tensor")

    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, fail)
    out = incre_flash_attention(**call)
    monkeypatch.undo()
    assert isinstance(out, torch.Tensor)
    assert isinstance(wanted, torch.Tensor)
    assert torch.equal(out, wanted)


def test_a_table_of_another_problem_is_refused() -> None:
    batch = BATCHES["drafts"]
    call = batch.call()
    for changes, says in (
        ({"mask_mode": 0}, "mask_mode"),
        ({"layout_q": "BNSD", "layout_out": "BNSD", "layout_kv": "BNSD"}, "layout"),
        ({"max_seqlen_q": 3}, "queries of 4 tokens"),
    ):
        kept = {"layout_kv": "BSND", "layout_q": "BSND", "layout_out": "BSND"}
        options = {"batch_size": 3, "max_seqlen_kv": 70, "max_seqlen_q": 4, "mask_mode": 3}
        metadata = flash_attn_metadata(4, 2, 16, **options | kept | changes)
        with pytest.raises(ValueError, match=says):
            incre_flash_attention(**call, metadata=metadata)


def test_equal_calls_are_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[None] = []
    known = calls.KNOWN
    known.forget()
    validate = known.validate

    def counted(*args: Any, **options: Any) -> Any:
        seen.append(None)
        return validate(*args, **options)

    monkeypatch.setattr(known, "validate", counted)
    for batch, count in (
        (IncreBatch((9, 5)), 1),
        (IncreBatch((9, 5), seed=1), 1),
        (IncreBatch((9, 6)), 2),
        (IncreBatch((9, 5), lengths="device"), 3),
        (IncreBatch((9, 5), cache=LIST), 4),
        (IncreBatch((9, 5), cache=LIST, seed=4), 4),
        (IncreBatch((9, 5), cache=LIST, layout="BNSD"), 5),
        (IncreBatch((9, 5), cache=DENSE), 5),
    ):
        incre_flash_attention(**batch.call())
        assert len(seen) == count
    call = IncreBatch((9, 5), lengths="host").call()
    with pytest.raises(TypeError, match=r"`actual_seq_lengths\[1\]` must be an int, got bool"):
        incre_flash_attention(**call | {"actual_seq_lengths": [9, True]})
    with pytest.raises(ValueError, match=r"`actual_seq_lengths\[1\]` must lie between"):
        incre_flash_attention(**call | {"actual_seq_lengths": [9, 10]})
