"""``FA_TRITON_CHECK_VALUES=1``: rubbish on the device is named instead of followed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.reference import flash_attn_reference
from tests.flash_attn.batches import Batch

BATCH = Batch((20, 30), (60, 50), heads=(4, 2))
PAGE = 16


@pytest.fixture(autouse=True)
def _reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def paged_call(*table: int) -> dict[str, Any]:
    """Two sequences of 40 and 16 keys in 6 pages of 16: three entries and one are used."""
    return {
        "q": torch.randn(2, 1, 4, 64).half(),
        "k": torch.randn(6, PAGE, 2, 64).half(),
        "v": torch.randn(6, PAGE, 2, 64).half(),
        "block_table": ints(*table).view(2, 4),
        "seqused_kv": ints(40, 16),
        "layout_kv": "PA_BBND",
    }


def paged_metadata() -> torch.Tensor:
    return flash_attn_metadata(
        4,
        2,
        64,
        seqused_kv=ints(40, 16),
        max_seqlen_q=1,
        layout_kv="PA_BBND",
        page_size=PAGE,
    )


@pytest.mark.parametrize("planned", [False, True])
def test_right_values_pass(planned: bool) -> None:
    metadata = paged_metadata() if planned else None
    flash_attn(**paged_call(0, 5, 2, -1, 3, 10**9, -7, 6), metadata=metadata)
    BATCH.check(num_aic=3, num_aiv=6)
    BATCH.check(planner="section_stream_k", num_aic=3, num_aiv=6)


@pytest.mark.parametrize("attend", [flash_attn, flash_attn_reference])
@pytest.mark.parametrize(
    ("table", "says"),
    [
        ((0, 6, 2, 0, 3, 0, 0, 0), r"`block_table\[0, 1\]` must lie between 0 and 5, got 6"),
        ((0, 5, -1, 0, 3, 0, 0, 0), r"`block_table\[0, 2\]` must lie between 0 and 5, got -1"),
        ((0, 5, 2, 0, 10**9, 0, 0, 0), r"`block_table\[1, 0\]` .* got 1000000000"),
    ],
)
def test_pages_that_do_not_exist(attend: Any, table: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        attend(**paged_call(*table))


def test_lengths_beyond_the_tensor() -> None:
    (q, k, v), options = BATCH.tensors()
    metadata = BATCH.metadata()
    options["seqused_kv"] = ints(60, 999)
    with pytest.raises(ValueError, match="seqused_kv"):
        flash_attn(q, k, v, metadata=metadata, **options)


def test_queries_longer_than_planned() -> None:
    (q, k, v), options = BATCH.tensors()
    short = BATCH.but(q_lens=(20, 25), padding=5).metadata()
    with pytest.raises(ValueError, match="queries of 30 tokens"):
        flash_attn(q, k, v, metadata=short, **options)


@pytest.mark.parametrize("word", [16, 20, 22])
def test_a_damaged_table(word: int) -> None:
    (q, k, v), options = BATCH.tensors()
    metadata = BATCH.metadata(num_aic=3, num_aiv=6).clone()
    flash_attn(q, k, v, metadata=metadata, **options)
    metadata[word] += 9
    with pytest.raises(ValueError, match=f"in word {word}"):
        flash_attn(q, k, v, metadata=metadata, **options)


def test_a_foreign_table_is_called_so() -> None:
    (q, k, v), options = BATCH.tensors()
    with pytest.raises(ValueError, match="num_heads_q"):
        flash_attn(q, k, v, metadata=BATCH.but(heads=(8, 2)).metadata(), **options)


def test_a_table_of_section_stream_k_with_a_left_window_for_other_lengths() -> None:
    """Only the planned lengths may be called: cuts of others lead outside of the workspace."""
    window: dict[str, Any] = {"mask_mode": 4, "win_left": 3, "win_right": 0}
    lens = ints(300, 300, 300)
    metadata = flash_attn_metadata(
        4,
        2,
        64,
        batch_size=3,
        max_seqlen_q=4,
        seqused_kv=lens,
        planner="section_stream_k",
        num_aic=7,
        num_aiv=14,
        **window,
    )
    q, k, v = (torch.randn(3, tokens, h, 64).half() for tokens, h in ((4, 4), (300, 2), (300, 2)))
    flash_attn(q, k, v, seqused_kv=lens, metadata=metadata, **window)
    lens.copy_(ints(300, 2, 0))
    with pytest.raises(ValueError, match="must be made for the lengths of the call"):
        flash_attn(q, k, v, seqused_kv=lens, metadata=metadata, **window)
