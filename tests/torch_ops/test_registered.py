"""The operators as torch knows them: schemas, fake kernels, torch's own checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # imported once, not in every child

import fa_triton
import fa_triton.ops
from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.attention.metadata import KnownHeader
from fa_triton.planner.table import read_header
from tests.torch_ops.calls import CALLS, SOME_CALLS, dense, ints, packed, random

OPS = torch.ops.fa_triton
NAMES = ["flash_attn", "flash_attn_metadata", "merge_attn_states"]
PACKED = {"layout_q": "TND", "layout_kv": "TND", "layout_out": "TND"}


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_has_the_arguments_and_defaults_of_its_function(name: str) -> None:
    schema = getattr(OPS, name).default._schema
    public = inspect.signature(getattr(fa_triton, name)).parameters
    assert {argument.name for argument in schema.arguments} == set(public)
    for argument in schema.arguments:
        default = public[argument.name].default
        assert argument.has_default_value() is (default is not inspect.Parameter.empty)
        if argument.has_default_value():
            assert argument.default_value == default, argument.name


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_mutated_and_results_are_new(name: str) -> None:
    schema = getattr(OPS, name).default._schema
    assert not schema.is_mutable
    assert all(value.alias_info is None for value in (*schema.arguments, *schema.returns))


@pytest.mark.parametrize("case", SOME_CALLS)
def test_torch_accepts_flash_attn(case: str) -> None:
    call = CALLS[case]
    torch.library.opcheck(OPS.flash_attn.default, (), call.arguments)


def test_torch_accepts_flash_attn_with_a_plan() -> None:
    call = packed(return_softmax_lse=True)
    lengths = {name: call.tensors[name] for name in ("cu_seqlens_q", "cu_seqlens_kv")}
    metadata = flash_attn_metadata(4, 2, 64, **lengths, **PACKED)
    torch.library.opcheck(OPS.flash_attn.default, (), call.arguments | {"metadata": metadata})


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3, "max_seqlen_q": 8, "max_seqlen_kv": 16, "mask_mode": 3},
        {"cu_seqlens_q": ints(0, 3, 9), "cu_seqlens_kv": ints(0, 30, 31), **PACKED},
        {
            "cu_seqlens_q": ints(0, 1, 2),
            "seqused_kv": ints(300, 2),
            **PACKED,
            "layout_kv": "PA_BBND",
            "page_size": 32,
            "device": torch.device("cpu"),
        },
        {"batch_size": 2, "max_seqlen_q": 8, "max_seqlen_kv": 16, "planner": "section_stream_k"},
    ],
    ids=["dense", "packed", "paged", "section_stream_k"],
)
def test_torch_accepts_flash_attn_metadata(options: dict[str, Any]) -> None:
    torch.library.opcheck(OPS.flash_attn_metadata.default, (4, 2, 64), options)


@pytest.mark.parametrize("layout", ["TND", "BSND", "BNSD"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_torch_accepts_merge_attn_states(layout: str, dtype: torch.dtype) -> None:
    parts = states(layout, dtype)
    torch.library.opcheck(OPS.merge_attn_states.default, parts, {"layout": layout})


def states(layout: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Two results; that of BNSD is a view with other strides."""
    if layout == "TND":
        out, lse = random(6, 4, 64, dtype=dtype), random(4, 6, dtype=torch.float32)
    else:
        out, lse = random(2, 6, 4, 64, dtype=dtype), random(2, 4, 6, dtype=torch.float32)
        out = out.transpose(1, 2) if layout == "BNSD" else out
    return out, lse, out + 1, lse - 1


def test_operator_and_function_are_the_same() -> None:
    for call in CALLS.values():
        wanted, wanted_lse = flash_attn(**call.arguments)
        out, lse = OPS.flash_attn(**call.arguments)
        assert torch.equal(out, wanted)
        assert torch.equal(lse, wanted_lse)


def test_a_plan_of_the_operator_is_the_callers_own() -> None:
    """A graph may reuse the memory of a result, and the kept plan must not change by that."""
    options = {"batch_size": 3, "max_seqlen_q": 8, "max_seqlen_kv": 16}
    first = OPS.flash_attn_metadata(4, 2, 64, **options)
    kept = flash_attn_metadata(4, 2, 64, **options)
    assert torch.equal(first, kept)
    first.zero_()
    assert torch.equal(OPS.flash_attn_metadata(4, 2, 64, **options), kept)


@pytest.mark.parametrize("inference", [False, True])
def test_the_header_of_a_plan_is_known_without_reading_it(inference: bool) -> None:
    with torch.inference_mode(inference):
        metadata = OPS.flash_attn_metadata(4, 2, 64, batch_size=2, max_seqlen_q=8, max_seqlen_kv=16)
    header = KnownHeader.of(metadata)
    assert header is not None
    assert header == read_header(metadata.numpy())


def test_a_plan_of_the_operator_serves_a_call() -> None:
    call = dense()
    metadata = OPS.flash_attn_metadata(4, 2, 64, batch_size=2, max_seqlen_q=8, max_seqlen_kv=16)
    out, _ = OPS.flash_attn(**call.arguments, metadata=metadata)
    assert torch.equal(out, flash_attn(**call.arguments)[0])


@pytest.mark.parametrize("call", [OPS.flash_attn, flash_attn])
def test_rules_hold_inside_the_operator(call: Callable[..., Any]) -> None:
    q, k, v = dense().tensors.values()
    with pytest.raises(ValueError, match="`win_left` must be -1 with mask_mode=0"):
        call(q, k, v, win_left=3)
    with pytest.raises(TypeError, match="`k` must have the dtype of q"):
        call(q, k.float(), v)
