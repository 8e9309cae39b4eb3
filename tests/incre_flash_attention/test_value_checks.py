"""``FA_TRITON_CHECK_VALUES=1``: rubbish on the device is named instead of followed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fa_triton import flash_attn_metadata, incre_flash_attention
from tests.incre_flash_attention.batches import LIST, IncreBatch
from tests.incre_flash_attention.planning import plan_for

PAGES = IncreBatch((40, 17), heads=(4, 2), cache="PA_BNBD", page_size=32, lengths="device")


@pytest.fixture(autouse=True)
def _reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")


def refused(call: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        incre_flash_attention(**call)


RIGHT = {
    "page tokens": PAGES.but(quant="per_token", has_offset=True),
    "padded": IncreBatch((9, 0, 5), quant="per_token_head", left_padding=2, has_short_room=True),
    "pages": PAGES,
    "page heads": PAGES.but(quant="per_token_head"),
    "tokens": IncreBatch((9, 0, 5), quant="per_token", lengths="device64", has_offset=True),
    "tensor": IncreBatch((9, 5), quant="per_tensor", output_quant="channel"),
    "list": IncreBatch((9, 0), cache=LIST, lengths="device"),
}
QUICK = ("page tokens", "padded")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RIGHT],
)
def test_right_values_pass(name: str) -> None:
    """Scales of tokens that no sequence has are NaN here."""
    incre_flash_attention(**RIGHT[name].call())


@pytest.mark.parametrize("lengths", [(41, -1), (500, 3), (7, 10**6)])
def test_lengths_outside_of_their_room(lengths: tuple[int, ...]) -> None:
    call = PAGES.call()
    room = call["block_table"].shape[1] * 32
    call["actual_seq_lengths"] = torch.tensor(lengths)
    b = next(b for b, length in enumerate(lengths) if not 0 <= length <= room)
    refused(call, rf"`actual_seq_lengths\[{b}\]` must lie between 0 and {room}")


def test_a_length_past_the_tensor_of_a_list() -> None:
    call = IncreBatch((9, 5, 3), cache=LIST, lengths="device").call()
    call["actual_seq_lengths"] = torch.tensor([9, 8, 3])
    refused(call, r"`actual_seq_lengths\[1\]` must lie between 0 and 6, .* got 8")


@pytest.mark.parametrize("page", [-1, 10**6])
def test_a_page_that_does_not_exist(page: int) -> None:
    call = PAGES.call()
    call["block_table"][0, 1] = page
    refused(call, rf"`block_table\[0, 1\]` must lie between 0 and .*, got {page}")


@pytest.mark.parametrize("name", ["antiquant_scale", "antiquant_offset"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("quant", ["per_tensor", "per_channel", "per_token", "per_token_head"])
def test_scales_that_are_not_finite(name: str, value: float, quant: str) -> None:
    for cache in ("dense", "PA_NZ"):
        batch = IncreBatch((9, 5), cache=cache, page_size=32, quant=quant, has_offset=True)
        call = batch.call()
        tokens = call[name]
        # the first key of sequence 1: its values' scale
        page = 1 if cache == "dense" else int(call["block_table"][1, 0])
        place = (1, page) if quant.startswith("per_token") else (1,)
        tokens[place].view(-1)[0] = value
        refused(call, re.escape(f"`{name}` must be finite"))


@pytest.mark.parametrize("name", ["quant_scale2", "quant_offset2"])
def test_scales_of_the_result_that_are_not_finite(name: str) -> None:
    call = IncreBatch((9,), output_quant="channel", has_output_offset=True).call()
    call[name][3] = torch.nan
    refused(call, rf"`{name}` must be finite, all, got nan in 1 of 32")


def test_a_damaged_table() -> None:
    call = IncreBatch((9, 5), heads=(4, 2), lengths="device").call()
    used = call["actual_seq_lengths"]
    metadata = flash_attn_metadata(4, 2, 16, seqused_kv=used, max_seqlen_q=1).clone()
    incre_flash_attention(**call, metadata=metadata)
    metadata[20] += 9
    refused(call | {"metadata": metadata}, "in word 20")


def test_a_table_of_section_stream_k_with_a_left_window_for_other_lengths() -> None:
    """Only the planned lengths may be called: cuts of others lead outside of the workspace."""
    batch = IncreBatch((300, 300, 300), tokens=4, heads=(4, 2), head_dim=32, lengths="device")
    batch = batch.but(options={"win_left": 3})
    plan = plan_for(batch, 300, planner="section_stream_k", num_aic=7, num_aiv=14)
    call: dict[str, Any] = batch.call() | {"metadata": plan}
    incre_flash_attention(**call)
    call["actual_seq_lengths"].copy_(torch.tensor([300, 2, 0]))
    refused(call, "section_stream_k with a left window must be made for the lengths of the call")
