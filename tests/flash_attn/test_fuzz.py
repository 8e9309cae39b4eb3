"""Random batches and plans against the float64 oracle.

Every form below fixes what a compiled kernel depends on (layouts, heads, dtype, kind of mask,
planner); lengths, windows, cores, block sizes and the data are drawn. Plans are made from upper
bounds, to which the lengths on the device are equal, or from which they shrink. Everything that a
call must not read is NaN: keys and values behind the actual lengths, queries too, and new memory.

``FA_TRITON_FUZZ_EXAMPLES=500`` draws as many random examples per form instead of the same few at
every run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.planner import section_stream_k
from tests.flash_attn.batches import starts
from tests.oracle import assert_accurate

EXAMPLES = os.environ.get("FA_TRITON_FUZZ_EXAMPLES")
FEW_EXAMPLES = 8
HEAD_DIM = 64
LONGEST_Q = 80
# enough key blocks that both planners cut row blocks and combine
LONGEST_KV = 700
MAX_BATCH = 4
MAX_CORES = 40
# multiples that the same tiles of 16 rows and 32 keys divide
BLOCKS_Q = (16, 80, 240)
BLOCKS_KV = (32, 96, 160)
QUERIES = st.sampled_from((0, 1, 2, 15, 16, 17, 33, 80)) | st.integers(0, LONGEST_Q)
KEYS = st.sampled_from((0, 1, 31, 32, 33, 400, 700)) | st.integers(0, LONGEST_KV)
LONG_KEYS = st.sampled_from((641, LONGEST_KV)) | KEYS
WIDTHS = st.sampled_from((0, 1, 31, 33, 100, 650)) | st.integers(0, LONGEST_KV)


@dataclass(frozen=True)
class Form:
    """What is fixed over the examples of one test."""

    layout: str
    heads: tuple[int, int]
    mask: str
    planner: str = "balanced"
    layout_out: str = ""
    dtype: torch.dtype = torch.float16
    is_decode: bool = False
    has_sinks: bool = False

    def __str__(self) -> str:
        rows = "decode" if self.is_decode else "any"
        return f"{self.layout}-h{self.heads[0]}:{self.heads[1]}-{self.mask}-{rows}-{self.planner}"


FORMS = [
    Form("BSND", (2, 2), "none"),
    Form("BSND", (7, 1), "causal", has_sinks=True),
    Form("BNSD", (6, 2), "band", planner="section_stream_k"),
    Form("TND", (3, 1), "left", has_sinks=True),
    Form("TND", (2, 2), "sliding", planner="section_stream_k"),
    Form("BNSD", (4, 2), "right", layout_out="BSND", dtype=torch.float32),
    Form("TND", (10, 2), "left", is_decode=True, dtype=torch.bfloat16, has_sinks=True),
    Form("BNSD", (3, 1), "none", is_decode=True, planner="section_stream_k"),
]


@dataclass(frozen=True)
class Example:
    """One call: the lengths it was planned for, those it has, its mask, plan and data."""

    planned_q: tuple[int, ...]
    planned_kv: tuple[int, ...]
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    mask: dict[str, int]
    plan: dict[str, int]
    l2_bytes: int
    seed: int


@st.composite
def examples(draw: st.DrawFn, form: Form) -> Example:
    batch = draw(st.just(1) | st.integers(1, MAX_BATCH))
    queries = st.integers(0, 1) if form.is_decode else QUERIES
    planned_q = tuple(draw(queries) for _ in range(batch))
    planned_kv = tuple(draw(LONG_KEYS if b == 0 else KEYS) for b in range(batch))
    # one query of full length keeps the tile
    planned_q = (1 if form.is_decode else LONGEST_Q, *planned_q[1:])
    q_lens, kv_lens = planned_q, planned_kv
    # CANN's table follows no other lengths than its own through a left window
    may_shrink = form.planner == "balanced" or form.mask in ("none", "causal", "right")
    if may_shrink and draw(st.booleans()):
        q_lens, kv_lens = (
            tuple(draw(st.integers(0, length)) for length in lengths)
            for lengths in (planned_q, planned_kv)
        )
    mask: dict[str, int] = {}
    if form.mask == "causal":
        mask = {"mask_mode": 3}
    elif form.mask != "none":
        mask = {"mask_mode": 4, "win_left": -1, "win_right": -1}
        if form.mask != "right":
            mask["win_left"] = draw(WIDTHS)
        if form.mask != "left":
            mask["win_right"] = 0 if form.mask == "sliding" else 1 + draw(WIDTHS)
    num_aic = draw(st.just(MAX_CORES) | st.integers(1, MAX_CORES))
    plan = {
        "num_aic": num_aic,
        "num_aiv": num_aic * draw(st.integers(1, 2)),
        "block_q": draw(st.sampled_from(BLOCKS_Q)),
        "block_kv": draw(st.sampled_from(BLOCKS_KV)),
    }
    # a small cache makes section_stream_k cut the batch into sections
    l2_bytes = draw(st.sampled_from((300_000, section_stream_k.L2_BYTES)))
    seed = draw(st.integers(0, 2**16))
    return Example(planned_q, planned_kv, q_lens, kv_lens, mask, plan, l2_bytes, seed)


def operand(
    form: Form,
    heads: int,
    planned: tuple[int, ...],
    lens: tuple[int, ...],
    longest: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Random values where a sequence has tokens, NaN everywhere else."""
    values = torch.randn(MAX_BATCH * longest + 5, heads, HEAD_DIM, generator=generator)
    if form.layout == "TND":
        tensor = torch.full_like(values, torch.nan)
        first = 0
        for room, length in zip(planned, lens, strict=True):
            tensor[first : first + length] = values[first : first + length]
            first += room
        return tensor.to(form.dtype)
    tensor = values[: len(lens) * longest].view(len(lens), longest, heads, HEAD_DIM)
    for b, length in enumerate(lens):
        tensor[b, length:] = torch.nan
    if form.layout == "BNSD":
        tensor = tensor.transpose(1, 2).contiguous()
    return tensor.to(form.dtype)


def check(form: Form, example: Example) -> None:
    generator = torch.Generator().manual_seed(example.seed)
    heads_q, heads_kv = form.heads
    longest_q = 1 if form.is_decode else LONGEST_Q
    q = operand(form, heads_q, example.planned_q, example.q_lens, longest_q, generator)
    k, v = (
        operand(form, heads_kv, example.planned_kv, example.kv_lens, LONGEST_KV, generator)
        for _ in "kv"
    )
    shared: dict[str, Any] = {
        "layout_q": form.layout,
        "layout_kv": form.layout,
        "layout_out": form.layout_out or form.layout,
        **example.mask,
    }
    if form.layout == "TND":
        shared["cu_seqlens_q"] = starts(example.planned_q)
        shared["cu_seqlens_kv"] = starts(example.planned_kv)
    with mock.patch.object(section_stream_k, "L2_BYTES", example.l2_bytes):
        metadata = flash_attn_metadata(
            *form.heads,
            HEAD_DIM,
            planner=form.planner,
            seqused_q=torch.tensor(example.planned_q, dtype=torch.int32),
            seqused_kv=torch.tensor(example.planned_kv, dtype=torch.int32),
            **example.plan,
            **shared,
        )
    options: dict[str, Any] = {
        **shared,
        "seqused_q": torch.tensor(example.q_lens, dtype=torch.int32),
        "seqused_kv": torch.tensor(example.kv_lens, dtype=torch.int32),
        "softmax_scale": HEAD_DIM**-0.5,
        "return_softmax_lse": True,
    }
    if form.has_sinks:
        options["sinks"] = torch.randn(heads_q, generator=generator)
    out, lse = flash_attn(q, k, v, metadata=metadata, **options)
    assert_accurate(out, lse, q, k, v, **options)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=str)
@settings(
    max_examples=int(EXAMPLES or FEW_EXAMPLES),
    derandomize=EXAMPLES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_random_batches(form: Form, data: st.DataObject, nan_filled_memory: None) -> None:
    check(form, data.draw(examples(form)))
