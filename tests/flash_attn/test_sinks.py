"""Sinks: a logit per query head without a value, counted in the log-sum-exp or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn
from fa_triton.planner.table import read_header
from tests.flash_attn.batches import Batch
from tests.flash_attn.paging import Paging
from tests.oracle import assert_accurate

COUNTED = {"lse_includes_sink": True}
DECODE = Batch(
    (1, 1, 0, 1), (700, 33, 7, 0), heads=(6, 2), layout="TND", has_sinks=True, options=COUNTED
)
MIXED = DECODE.but(q_lens=(1, 70, 3, 0), kv_lens=(290, 40, 2, 50))
PLANS = [
    pytest.param({"num_aic": 9, "num_aiv": 18}, id="balanced"),
    pytest.param(
        {"planner": "section_stream_k", "block_q": 16, "block_kv": 32, "num_aic": 9},
        id="section_stream_k",
        marks=pytest.mark.slow,
    ),
]
pytestmark = pytest.mark.usefixtures("nan_filled_memory")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("paging", [None, Paging("PA_BNBD", 48)], ids=str)
def test_counted_sinks(paging: Paging | None, plan: dict[str, Any]) -> None:
    """Split or whole, on pages or not; MIXED and DECODE have rows without a key."""
    batch = DECODE.but(paging=paging)
    assert read_header(batch.metadata(**plan).numpy()).is_fd
    for kind in (batch, MIXED.but(paging=paging)):
        kind.check(**plan)
        kind.but(options={}).check(**plan)


def per_sequence(
    batch: Batch, out: torch.Tensor, lse: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Results ``[tokens, Nq, D]`` and ``[Nq, tokens]``; those of TND end with the padding rows."""
    if batch.layout == "TND":
        sizes = [*batch.q_lens, batch.padding]
        return list(zip(out.split(sizes), lse.split(sizes, 1), strict=True))
    tokens = out.transpose(1, 2) if batch.layout == "BNSD" else out
    return list(zip(tokens, lse, strict=True))


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "TND"])
@pytest.mark.parametrize("heads", [(6, 2), pytest.param((2, 2), marks=pytest.mark.slow)], ids=str)
def test_rows_without_keys(heads: tuple[int, int], layout: str) -> None:
    """The log-sum-exp of a row that sees no key is the sink, that of a padding row +inf."""
    batch = DECODE.but(q_lens=(4, 2, 3), kv_lens=(2, 0, 9), heads=heads, layout=layout, padding=2)
    (q, k, v), options = batch.tensors()
    sinks = options["sinks"]
    empty = torch.full_like(sinks, torch.inf)
    for is_counted in (True, False):
        options["lse_includes_sink"] = is_counted
        out, lse = flash_attn(q, k, v, **options)
        assert_accurate(out, lse, q, k, v, **options)
        results = per_sequence(batch, out, lse)
        for b in (0, 1):
            for row in (0, 1):
                values, logs = results[b][0][row], results[b][1][:, row]
                assert not values.any()
                torch.testing.assert_close(logs, sinks if is_counted else empty)
        padding = results[-1][1][:, -batch.padding :]
        assert torch.equal(padding, empty[:, None].expand_as(padding))


@pytest.mark.parametrize("plan", PLANS)
def test_huge_and_absent_sinks(plan: dict[str, Any]) -> None:
    """A sink of 100 takes all weight and overflows nothing; one of -inf takes none."""
    batch = DECODE.but(q_lens=(1, 2, 1), kv_lens=(700, 500, 0))
    metadata = batch.metadata(**plan)
    (q, k, v), options = batch.tensors()
    options["sinks"] = torch.tensor([100.0, -100.0, 0.0, -torch.inf, 1000.0, 3.0])
    for counted in (True, False):
        options["lse_includes_sink"] = counted
        out, lse = flash_attn(q, k, v, metadata=metadata, **options)
        assert out.isfinite().all()
        assert_accurate(out, lse, q, k, v, **options)
        assert out[:3, (0, 4)].abs().max() < 1e-6
    plain, _ = flash_attn(q, k, v, metadata=metadata, **options | {"sinks": None})
    assert torch.equal(out[:, 3], plain[:, 3])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["BSND", "BNSD"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_dtypes_and_layouts(dtype: torch.dtype, layout: str) -> None:
    for batch in (DECODE, MIXED):
        for plan in PLANS:
            batch.but(dtype=dtype, layout=layout).check(**plan.values[0])
