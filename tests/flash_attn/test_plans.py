"""The kernels run the tables of both planners, cut anywhere, in any number of sections."""

from __future__ import annotations

import pytest
import torch

from fa_triton import flash_attn
from fa_triton.planner import section_stream_k
from fa_triton.planner.table import read_header
from tests.flash_attn.batches import Batch

PLANNERS = ["balanced", "section_stream_k"]
LONG_DECODE = Batch((1, 1), (900, 300), heads=(6, 2), layout="TND", has_sinks=True)
PREFILL = Batch((90, 150), (500, 270), heads=(4, 2), has_sinks=True)
SOME_CORES = [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 24))]
pytestmark = pytest.mark.usefixtures("nan_filled_memory")


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("cores", SOME_CORES)
@pytest.mark.parametrize(
    "batch",
    [
        LONG_DECODE,
        LONG_DECODE.but(mask="left"),
        LONG_DECODE.but(layout="BNSD", head_dim=128),
        PREFILL,
        PREFILL.but(mask="band"),
        PREFILL.but(mask="sliding", layout="BNSD"),
        PREFILL.but(mask="none", layout="BNSD", heads=(6, 2)),
        PREFILL.but(mask="left", layout="TND", heads=(3, 1)),
        Batch((3, 2), (700, 130), heads=(6, 2), mask="causal"),
        Batch((200,), (200,), heads=(2, 2), head_dim=256),
    ],
    ids=str,
)
def test_core_counts(batch: Batch, cores: int, planner: str) -> None:
    batch.check(planner=planner, num_aic=cores, num_aiv=2 * cores)


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("blocks", [(16, 32), (32, 64), (128, 256)], ids=str)
def test_block_sizes(blocks: tuple[int, int], planner: str) -> None:
    block_q, block_kv = blocks
    PREFILL.check(planner=planner, num_aic=7, num_aiv=14, block_q=block_q, block_kv=block_kv)


def test_a_row_cut_by_many_cores() -> None:
    batch = Batch((1,), (2000,), heads=(2, 1), layout="TND", mask="none")
    header = read_header(batch.metadata(num_aic=16, num_aiv=32, block_kv=32).numpy())
    assert header.is_fd
    assert header.num_slots > 8
    batch.check(num_aic=16, num_aiv=32, block_kv=32)


@pytest.mark.parametrize("layout", ["BSND", "BNSD"])
@pytest.mark.parametrize("mask", ["none", "causal", "band"])
def test_sections(monkeypatch: pytest.MonkeyPatch, mask: str, layout: str) -> None:
    monkeypatch.setattr(section_stream_k, "L2_BYTES", 300_000)
    batch = Batch((150, 80, 140), (330, 300, 500), mask=mask, layout=layout)
    plan = {"planner": "section_stream_k", "num_aic": 5, "num_aiv": 10}
    assert read_header(batch.metadata(**plan).numpy()).num_sections > 1
    batch.check(**plan)


def test_bitwise_reproducible() -> None:
    (q, k, v), options = PREFILL.tensors()
    metadata = PREFILL.metadata(num_aic=9, num_aiv=18)
    first = flash_attn(q, k, v, metadata=metadata, **options)
    second = flash_attn(q, k, v, metadata=metadata, **options)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("mask", ["none", "causal", "sliding", "band", "left"])
@pytest.mark.parametrize("layout", ["TND", "BSND"])
def test_a_balanced_plan_of_upper_bounds_stays_right(layout: str, mask: str) -> None:
    """Lengths on the device may shrink after planning, as under graph replay."""
    bound = Batch((40, 60, 50), (400, 300, 350), layout="BSND", mask=mask)
    used_q, used_kv = (40, 7, 0), (390, 64, 5)
    metadata = bound.but(layout=layout).metadata(num_aic=13, num_aiv=26)
    if layout == "TND":
        shrunk = Batch(used_q, used_kv, layout="TND", mask=mask)
        (q, k, v), options = shrunk.tensors()
    else:
        (q, k, v), options = bound.tensors()
        options["seqused_q"] = torch.tensor(used_q, dtype=torch.int32)
        options["seqused_kv"] = torch.tensor(used_kv, dtype=torch.int32)
    from tests.oracle import assert_accurate

    out, lse = flash_attn(q, k, v, metadata=metadata, **options)
    assert_accurate(out, lse, q, k, v, **options)


def test_decode_plan_of_upper_bounds_stays_right() -> None:
    bound = Batch((1, 1, 1, 1), (500, 400, 300, 200), heads=(8, 2), layout="TND", mask="causal")
    metadata = bound.metadata(num_aic=13, num_aiv=26)
    for used in ((500, 1, 2, 3), (1, 400, 0, 200), (129, 128, 127, 1)):
        (q, k, v), options = bound.but(kv_lens=used).tensors()
        from tests.oracle import assert_accurate

        out, lse = flash_attn(q, k, v, metadata=metadata, **options)
        assert_accurate(out, lse, q, k, v, **options)
