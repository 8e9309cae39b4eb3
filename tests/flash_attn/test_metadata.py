"""A plan belongs to a problem: made once, reused by layers, refused elsewhere."""

from __future__ import annotations

import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.planner.table import read_header
from tests.flash_attn.batches import Batch

BATCH = Batch((20, 30), (60, 50), heads=(4, 2))


def test_a_plan_is_int32_on_the_device_of_the_lengths() -> None:
    metadata = BATCH.metadata()
    assert metadata.dtype == torch.int32
    assert metadata.device == torch.device("cpu")
    assert read_header(metadata.numpy()).batch_size == 2


def test_a_copy_of_a_plan_works_and_is_checked() -> None:
    (q, k, v), options = BATCH.tensors()
    metadata = BATCH.metadata()
    planned, _ = flash_attn(q, k, v, metadata=metadata, **options)
    copied, _ = flash_attn(q, k, v, metadata=metadata.clone(), **options)
    assert torch.equal(planned, copied)
    cut = metadata[:16].clone()
    with pytest.raises(ValueError, match="words"):
        flash_attn(q, k, v, metadata=cut, **options)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (BATCH.but(heads=(8, 2)), "num_heads_q"),
        (BATCH.but(heads=(4, 4)), "num_heads_kv"),
        (BATCH.but(head_dim=128), "head_dim"),
        (BATCH.but(mask="none"), "mask_mode"),
        (BATCH.but(layout="BNSD"), "layout_q"),
        (Batch((20, 30, 3), (60, 50, 3)), "batch"),
    ],
    ids=lambda value: str(value),
)
def test_a_foreign_plan_is_refused(other: Batch, named: str) -> None:
    (q, k, v), options = BATCH.tensors()
    with pytest.raises(ValueError, match=named):
        flash_attn(q, k, v, metadata=other.metadata(), **options)


def test_a_plan_of_shorter_queries_is_refused() -> None:
    q, k, v = (torch.randn(2, 30, 2, 64) for _ in range(3))
    short = flash_attn_metadata(2, 2, 64, batch_size=2, max_seqlen_q=8, max_seqlen_kv=30)
    with pytest.raises(ValueError, match="30"):
        flash_attn(q, k, v, metadata=short)


def test_rubbish_is_no_plan() -> None:
    (q, k, v), options = BATCH.tensors()
    with pytest.raises(ValueError, match="flash_attn_metadata"):
        flash_attn(q, k, v, metadata=torch.zeros(64, dtype=torch.int32), **options)


def test_equal_batches_share_a_plan() -> None:
    assert BATCH.metadata() is BATCH.metadata()
    assert BATCH.metadata() is not BATCH.metadata(num_aic=3)


def test_lengths_beyond_the_tensor_stay_in_bounds() -> None:
    """Unchecked rubbish lengths on the device read no memory outside the tensors' rows."""
    (q, k, v), options = BATCH.tensors()
    metadata = BATCH.metadata()
    options["seqused_kv"] = torch.tensor([60, 10**9], dtype=torch.int32)
    options["seqused_q"] = torch.tensor([20, 10**9], dtype=torch.int32)
    out, _ = flash_attn(q, k, v, metadata=metadata, **options)
    assert torch.isfinite(out[0]).all()
