"""Faults that a call once had, each by its smallest example."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.attention import plans
from tests.flash_attn.batches import Batch
from tests.oracle import assert_accurate

OPTIONS = {"softmax_scale": 0.125, "return_softmax_lse": True}


def operands(seqlen_kv: int = 40) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 40, 2, 64), (1, seqlen_kv, 2, 64), (1, seqlen_kv, 2, 64)]
    return [torch.randn(shape, generator=generator).half() for shape in shapes]


def plan(seqlen_kv: int = 40, **options: Any) -> torch.Tensor:
    return flash_attn_metadata(
        2, 2, 64, batch_size=1, max_seqlen_q=40, max_seqlen_kv=seqlen_kv, **options
    )


@pytest.mark.parametrize("inference", [False, True])
def test_a_buffer_of_plans_is_read_again_after_a_write(inference: bool) -> None:
    q, k, v = operands(700)
    first, second = plan(700, num_aic=1), plan(700, num_aic=9, block_kv=64)
    with torch.inference_mode(inference):
        buffer = torch.zeros(max(first.numel(), second.numel()), dtype=torch.int32)
        for table in (first, second):
            buffer.zero_()[: table.numel()] = table
            out, lse = flash_attn(q, k, v, metadata=buffer, **OPTIONS)
            assert_accurate(out, lse, q, k, v, **OPTIONS)
        causal = plan(700, mask_mode=3)
        buffer[: causal.numel()] = causal
        with pytest.raises(ValueError, match="mask_mode"):
            flash_attn(q, k, v, metadata=buffer, **OPTIONS)


@pytest.mark.parametrize("inference", [False, True])
def test_a_table_that_its_owner_overwrites_is_planned_again(inference: bool) -> None:
    with torch.inference_mode(inference):
        table = plan()
        kept = table.clone()
        table.zero_()
        assert torch.equal(plan(), kept)


def test_queries_that_outgrow_their_plan_stay_in_bounds() -> None:
    """A plan of single tokens addresses rows by head: more tokens left the tensors."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 6, 64, generator=generator).half()
    k = torch.randn(2, 2, 50, 64, generator=generator).half()
    layouts = {f"layout_{name}": "BNSD" for name in ("q", "kv", "out")}
    one = torch.ones(2, dtype=torch.int32)
    metadata = flash_attn_metadata(4, 2, 64, seqused_q=one, max_seqlen_kv=50, num_aic=2, **layouts)
    out, lse = flash_attn(q, k, k, metadata=metadata, seqused_q=one * 6, **layouts, **OPTIONS)
    assert torch.isfinite(out).all()
    assert not out[:, :, 1:].any()
    assert torch.isinf(lse[:, :, 1:]).all()


def test_outgrown_plans_are_refused_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch((3, 2), (20, 20))
    (q, k, v), options = Batch((9, 2), (20, 20)).tensors()
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")
    with pytest.raises(ValueError, match=r"queries of 9 tokens.* at most 3"):
        flash_attn(q, k, v, metadata=batch.metadata(), **options)


def test_section_stream_k_with_a_left_window_wants_its_lengths() -> None:
    q, k, v = operands()
    window = {"mask_mode": 4, "win_left": 20}
    metadata = plan(100, planner="section_stream_k", **window)
    with pytest.raises(ValueError, match="100 tokens of kv and 40"):
        flash_attn(q, k, v, metadata=metadata, **window, **OPTIONS)


class SlowCache(OrderedDict[Any, Any]):
    """Gives other threads time to change it behind a look-up."""

    def get(self, key: Any, default: Any = None) -> Any:
        value = super().get(key, default)
        time.sleep(1e-4)
        return value


def test_threads_share_the_cache_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_KEPT_PLANS", 1)
    monkeypatch.setattr(plans, "_recent", SlowCache())
    faults: list[Exception] = []

    def work() -> None:
        try:
            for seqlen in (1, 2) * 30:
                plan(seqlen)
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_the_unwanted_lse_is_float32_whatever_the_default() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        _, lse = flash_attn(*operands())
    finally:
        torch.set_default_dtype(torch.float32)
    assert lse.dtype == torch.float32


def test_tensors_without_memory_are_refused() -> None:
    q, k, v = operands()
    q.untyped_storage().resize_(0)
    with pytest.raises(NotImplementedError, match="`q` must have memory"):
        flash_attn(q, k, v)


def test_lazily_negated_views_are_refused() -> None:
    q, k, v = operands()
    with pytest.raises(ValueError, match="resolve_neg"):
        flash_attn(torch._neg_view(q), k, v)


@pytest.mark.parametrize("scale", [1e39, -1e300])
def test_a_scale_beyond_float32_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="`softmax_scale` must fit float32"):
        flash_attn(*operands(), softmax_scale=scale)


@pytest.mark.parametrize(
    "options",
    [
        {"num_aic": 10**9},
        {"num_aiv": 2**40},
        {"block_q": 2**31},
        {"block_kv": 2**33},
    ],
    ids=str,
)
def test_plans_beyond_any_device_are_refused(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"`{name}` must be at most"):
        plan(**options)


def test_lengths_beyond_int32_are_refused() -> None:
    with pytest.raises(ValueError, match="`max_seqlen_q` must be at most 2147483647"):
        flash_attn_metadata(2, 2, 64, batch_size=1, max_seqlen_q=2**31, max_seqlen_kv=8)


def test_a_row_with_nan_is_not_taken_for_an_empty_one() -> None:
    q, k, v = operands()
    q[0, 3, 0, 5] = torch.nan
    out, lse = flash_attn(q, k, v, **OPTIONS)
    assert torch.isnan(out[0, 3, 0]).all()
    assert torch.isnan(lse[0, 0, 3])
    assert torch.isfinite(lse[0, 1]).all()


def test_a_sink_of_infinity_takes_all() -> None:
    q, k, v = operands()
    sinks = torch.tensor([torch.inf, -torch.inf])
    out, lse = flash_attn(q, k, v, sinks=sinks, **OPTIONS)
    assert_accurate(out, lse, q, k, v, sinks=sinks, **OPTIONS)
    assert not out[:, :, 0].any()


def test_scalars_that_change_from_call_to_call_share_a_kernel() -> None:
    from fa_triton.kernels.attn_forward import attn_forward
    from fa_triton.launch import runner

    window = {"mask_mode": 4, "win_right": 0}
    compiled = []
    for seqlen_kv, win_left, cores in ((40, 1, 1), (48, 16, 16), (41, 7, 3)):
        q, k, v = operands(seqlen_kv)
        metadata = plan(seqlen_kv, num_aic=cores, win_left=win_left, **window)
        flash_attn(q, k, v, metadata=metadata, win_left=win_left, **window)
        compiled.append(runner(attn_forward)._native.num_variants)
    assert compiled == [1, 1, 1]
