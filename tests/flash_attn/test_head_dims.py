"""Head dims: every multiple of 8 up to 256, values of another width than keys, wider tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn
from fa_triton.planner.table import read_header
from tests.flash_attn.batches import Batch
from tests.flash_attn.paging import Paging
from tests.oracle import assert_accurate

EIGHTS = range(8, 257, 8)
SOME_EIGHTS = (8, 24, 40, 120, 200)
# powers of two, their neighbours, the usual odd ones, values wider than keys
PAIRS = [(192, 128), (128, 192), (8, 256), (256, 8), (64, 16), (40, 72), (72, 40), (256, 248)]
DECODE = Batch((1, 1, 1), (200, 33, 64), layout="TND")
MIXED = Batch((33, 1, 3), (90, 150, 2), layout="TND")
SPLIT = {"num_aic": 7, "num_aiv": 14, "block_kv": 32}
CANN = {"planner": "section_stream_k", "num_aic": 7, "block_q": 16, "block_kv": 32}
pytestmark = pytest.mark.usefixtures("nan_filled_memory")


def test_some_dims_of_decode() -> None:
    for head_dim in SOME_EIGHTS:
        DECODE.but(head_dim=head_dim).check()


@pytest.mark.slow
def test_every_dim_of_decode() -> None:
    for head_dim in EIGHTS:
        DECODE.but(head_dim=head_dim).check()


@pytest.mark.slow
def test_every_dim_of_mixed_rows() -> None:
    for head_dim in EIGHTS:
        MIXED.but(head_dim=head_dim).check()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("head_dim", SOME_EIGHTS)
def test_dtypes(head_dim: int, dtype: torch.dtype) -> None:
    for layout in ("BSND", "BNSD"):
        MIXED.but(head_dim=head_dim, dtype=dtype, layout=layout).check()


@pytest.mark.parametrize("dims", [(192, 128), (40, 72)], ids=str)
def test_two_dims_in_split_plans(dims: tuple[int, int]) -> None:
    batch = DECODE.but(kv_lens=(700, 33, 64), head_dim=dims[0], head_dim_v=dims[1], has_sinks=True)
    for plan in (SPLIT, CANN):
        assert read_header(batch.metadata(**plan).numpy()).is_fd
        batch.check(**plan)


@pytest.mark.slow
@pytest.mark.parametrize("dims", PAIRS, ids=str)
@pytest.mark.parametrize("batch", [DECODE, MIXED], ids=["decode", "mixed"])
def test_two_dims(batch: Batch, dims: tuple[int, int]) -> None:
    batch = batch.but(head_dim=dims[0], head_dim_v=dims[1])
    batch.check()
    batch.but(mask="band", layout="BNSD").check(**SPLIT)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["PA_BNBD", "PA_NZ"])
def test_dims_on_pages(layout: str) -> None:
    for dims in ((80, 48), (16, 64), (192, 128)):
        batch = DECODE.but(head_dim=dims[0], head_dim_v=dims[1], paging=Paging(layout, 48))
        batch.check()
        batch.check(**SPLIT)


@pytest.mark.parametrize("batch", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize(
    "dims", [(40, 24), pytest.param((64, 64), marks=pytest.mark.slow)], ids=str
)
def test_columns_of_wider_tensors(dims: tuple[int, int], batch: Batch) -> None:
    """What lies beside the head dim is NaN and has no effect."""
    (q, k, v), options = batch.but(head_dim=dims[0], head_dim_v=dims[1]).tensors()
    wanted, wanted_lse = flash_attn(q, k, v, **options)

    def within(tensor: torch.Tensor, left: int) -> torch.Tensor:
        wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 16), torch.nan)
        wide = wide.to(tensor.dtype)
        view = wide[..., left : left + tensor.shape[-1]]
        return view.copy_(tensor)

    out, lse = flash_attn(within(q, 8), within(k, 0), within(v, 16), **options)
    assert torch.equal(out, wanted)
    assert torch.equal(lse, wanted_lse)
    assert_accurate(out, lse, q, k, v, **options)


def test_results_are_dense() -> None:
    options: dict[str, Any] = {"softmax_scale": 0.2, "return_softmax_lse": True}
    q, k, v = (torch.randn(1, 9, 2, dim).half() for dim in (24, 24, 40))
    out, _ = flash_attn(q, k, v, **options)
    assert out.shape == (1, 9, 2, 40)
    assert out.is_contiguous()
    assert out.isfinite().all()
