"""Every rule of ``flash_attn_metadata`` that can be checked without reading a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton.validation import validate_flash_attn, validate_metadata
from tests.validation.calls import dense, ints, metadata, packed, packed_metadata, tensor
from tests.validation.refusals import Refusal, assert_refused, wrong_type, wrong_value


def bounds_of_packed(**changes: Any) -> dict[str, Any]:
    """Three packed sequences of which the host knows upper bounds only."""
    call = {
        "cu_seqlens_q": None,
        "cu_seqlens_kv": None,
        "batch_size": 3,
        "max_seqlen_q": 3,
        "max_seqlen_kv": 40,
    }
    return packed_metadata(**(call | changes))


RULES = [
    wrong_value("no query heads", metadata(num_heads_q=0), "`num_heads_q`", "at least 1", "got 0"),
    wrong_value("no key heads", metadata(num_heads_kv=-1), "`num_heads_kv`", "-1"),
    wrong_type("heads as a float", metadata(num_heads_q=4.0), "`num_heads_q`", "float"),
    wrong_value("heads no multiple", metadata(num_heads_q=5), "`num_heads_q`", "5 and 2"),
    wrong_value("head dim 20", metadata(head_dim=20), "`head_dim`", "got 20"),
    wrong_value("head dim 520", metadata(head_dim=520), "`head_dim`", "512", "got 520"),
    wrong_value("unknown layout", metadata(layout_q="NBSD"), "`layout_q`", "'NBSD'"),
    wrong_value("layouts apart", metadata(layout_kv="BNSD"), "`layout_kv`", "'BSND'", "'BNSD'"),
    wrong_value("layout of the result", metadata(layout_out="BNSD"), "`layout_out`", "'BNSD'"),
    wrong_value(
        "packed q of unknown length",
        packed_metadata(cu_seqlens_q=None),
        "`cu_seqlens_q` or `max_seqlen_q`",
        "TND",
        "None for both",
    ),
    wrong_value(
        "packed keys of unknown length",
        packed_metadata(cu_seqlens_kv=None, max_seqlen_q=3),
        "`cu_seqlens_kv` or `max_seqlen_kv`",
    ),
    wrong_value(
        "packed, bounds only, no batch size",
        packed_metadata(cu_seqlens_q=None, cu_seqlens_kv=None, max_seqlen_q=3, max_seqlen_kv=4),
        "the batch size",
        "batch_size",
    ),
    wrong_value("dense q packed", metadata(cu_seqlens_q=ints(4)), "`cu_seqlens_q`", "None"),
    wrong_type(
        "cu in int64", packed_metadata(cu_seqlens_q=tensor(4, dtype=torch.int64)), "int32", "int64"
    ),
    wrong_value("used of rank 2", metadata(seqused_q=ints(3, 1)), "`seqused_q`", "(3, 1)"),
    wrong_value("used of another batch", metadata(seqused_kv=ints(2)), "batch size", "3", "2"),
    wrong_value("cu of another batch", packed_metadata(cu_seqlens_q=ints(3)), "2", "3"),
    wrong_value("batch size apart", packed_metadata(batch_size=2), "batch size", "2 from batch"),
    wrong_value("no batch size", metadata(batch_size=None), "batch size", "none"),
    wrong_value("batch size 0", metadata(batch_size=0), "`batch_size`", "at least 1", "got 0"),
    wrong_value("batch size 65536", metadata(batch_size=65536), "65535", "65536"),
    wrong_value(
        "pages of unknown length",
        metadata(layout_kv="PA_BBND", max_seqlen_kv=None),
        "`seqused_kv` or `max_seqlen_kv`",
        "PA_BBND",
    ),
    wrong_value("page size, no pages", metadata(page_size=32), "`page_size`", "None", "BSND", "32"),
    *(
        wrong_value(
            f"pages of {size}",
            metadata(layout_kv="PA_BBND", page_size=size),
            "`page_size`",
            "multiple of 16 from 16 to 1024",
            f"got {size}",
        )
        for size in (0, 8, 40, 1040)
    ),
    wrong_type("page size as a float", metadata(layout_kv="PA_NZ", page_size=32.0), "`page_size`"),
    wrong_value("no sequence axis of q", metadata(max_seqlen_q=None), "`max_seqlen_q`", "BSND"),
    wrong_value("no sequence axis of k", metadata(max_seqlen_kv=-1), "`max_seqlen_kv`", "-1"),
    wrong_value("max_seqlen_q", packed_metadata(max_seqlen_q=-2), "`max_seqlen_q`", "-2"),
    wrong_value("mask mode 2", metadata(mask_mode=2), "`mask_mode`", "got 2"),
    wrong_value("window, no mask", metadata(win_left=4), "`win_left`", "mask_mode=0"),
    wrong_value("window, causal", metadata(mask_mode=3, win_right=0), "`win_right`"),
    wrong_value("window of -2", metadata(mask_mode=4, win_left=-2), "`win_left`", "-2"),
    wrong_value("unknown planner", metadata(planner="greedy"), "`planner`", "balanced", "greedy"),
    wrong_value("no matrix core", metadata(num_aic=0), "`num_aic`", "at least 1", "got 0"),
    wrong_value("no vector core", metadata(num_aiv=-4), "`num_aiv`", "-4"),
    wrong_type("cores as a float", metadata(num_aic=24.0), "`num_aic`", "float"),
    wrong_value("block_q of 8", metadata(block_q=8), "`block_q`", "16", "got 8"),
    wrong_value("block_kv of 40", metadata(block_kv=40), "`block_kv`", "multiple of 16", "40"),
    wrong_value(
        "batch_invariant by CANN's plan",
        metadata(batch_invariant=True, planner="section_stream_k"),
        "`planner`",
        "'balanced'",
        "batch_invariant",
    ),
    wrong_type("batch_invariant", metadata(batch_invariant="yes"), "`batch_invariant`", "str"),
]


@pytest.mark.parametrize("refusal", RULES, ids=str)
def test_refused(refusal: Refusal) -> None:
    assert_refused(validate_metadata, refusal)


@pytest.mark.parametrize(
    "call",
    [
        metadata(),
        packed_metadata(),
        packed_metadata(max_seqlen_q=0, batch_size=3),
        metadata(batch_size=None, seqused_q=ints(3), seqused_kv=ints(3), max_seqlen_q=None),
        metadata(planner="section_stream_k", num_aic=1, num_aiv=1, block_q=16, block_kv=512),
        metadata(mask_mode=None, win_left=None, win_right=None),
        metadata(layout_q="BNSD", layout_kv="BNSD", layout_out="BSND"),
        bounds_of_packed(),
        bounds_of_packed(max_seqlen_kv=0),
        packed_metadata(cu_seqlens_kv=None, max_seqlen_kv=9),
        packed_metadata(cu_seqlens_q=None, seqused_q=ints(3)),
        metadata(layout_kv="PA_BBND", page_size=None),
        metadata(batch_invariant=True),
        metadata(layout_kv="PA_BNBD", page_size=16),
        metadata(layout_kv="PA_NZ", page_size=1024, seqused_kv=ints(3), max_seqlen_kv=None),
    ],
)
def test_accepted(call: dict[str, Any]) -> None:
    validate_metadata(**call)


def test_fields_of_a_dense_batch() -> None:
    problem = validate_metadata(**metadata(mask_mode=4, win_left=3, num_aic=24, block_q=128))
    assert (problem.batch_size, problem.num_heads_q, problem.num_heads_kv) == (3, 4, 2)
    assert (problem.seqlen_q, problem.seqlen_kv) == (8, 16)
    assert (problem.total_q, problem.total_kv) == (24, 48)
    assert problem.window == (3, -1)
    assert (problem.planner, problem.num_aic, problem.num_aiv) == ("balanced", 24, None)
    assert (problem.block_q, problem.block_kv) == (128, None)


def test_fields_of_a_packed_batch() -> None:
    problem = validate_metadata(**packed_metadata(max_seqlen_q=9))
    assert (problem.batch_size, problem.seqlen_q, problem.seqlen_kv) == (3, 9, -1)
    assert (problem.total_q, problem.total_kv) == (-1, -1)


def test_fields_of_bounds() -> None:
    problem = validate_metadata(**bounds_of_packed(batch_size=5))
    assert problem.batch_size == 5
    assert (problem.seqlen_q, problem.seqlen_kv) == (3, 40)
    assert not problem.side("q").has_length_tensors
    assert not problem.side("kv").has_length_tensors


def test_page_size_of_a_plan() -> None:
    problem = validate_metadata(**metadata(layout_kv="PA_BBND", page_size=48))
    assert problem.page_size == 48
    assert validate_metadata(**metadata()).page_size == 0


@pytest.mark.parametrize("mask", [{}, {"mask_mode": 3}, {"mask_mode": 4, "win_left": 2**31 - 1}])
@pytest.mark.parametrize("call", [dense(), packed()])
def test_both_operators_describe_the_same_batch(call: dict[str, Any], mask: dict[str, Any]) -> None:
    attention = validate_flash_attn(**call, **mask)
    lengths = {name: call[name] for name in ("cu_seqlens_q", "cu_seqlens_kv") if name in call}
    plan = validate_metadata(
        attention.num_heads_q,
        attention.num_heads_kv,
        attention.head_dim,
        batch_size=attention.batch_size,
        max_seqlen_q=attention.seqlen_q,
        max_seqlen_kv=attention.seqlen_kv,
        layout_q=attention.layout_q,
        layout_kv=attention.layout_kv,
        layout_out=attention.layout_out,
        **lengths,
        **mask,
    )
    for name in (
        "batch_size",
        "num_heads_q",
        "num_heads_kv",
        "head_dim",
        "layout_q",
        "layout_kv",
        "layout_out",
        "seqlen_q",
        "seqlen_kv",
        "window",
        "mask_mode",
        "win_left",
        "win_right",
        "has_cu_seqlens_q",
        "has_seqused_kv",
    ):
        assert getattr(plan, name) == getattr(attention, name), name
