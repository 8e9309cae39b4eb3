"""Every rule of ``recurrent_kda``, the short convolutions and ``rms_norm_gated``, one by one."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch

from fa_triton import (
    causal_conv1d_fn,
    causal_conv1d_update,
    chunk_kda,
    recurrent_kda,
    rms_norm_gated,
)
from tests.validation.kda_calls import bf16, f32, pool, zeros
from tests.validation.refusals import Refusal, assert_refused, unbuilt, wrong_type, wrong_value


def ints(*values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def decode(**changes: Any) -> dict[str, Any]:
    """Three sequences in 4 tokens, H 2, HV 4, K 32, V 16, five slots."""
    call = {
        "q": zeros(1, 4, 2, 32),
        "k": zeros(1, 4, 2, 32),
        "v": zeros(1, 4, 4, 16),
        "raw_gate": zeros(1, 4, 4, 32),
        "beta": zeros(1, 4, 4),
        "state": zeros(5, 4, 16, 32, dtype=f32),
        "cu_seqlens": ints(0, 1, 1, 4),
        "ssm_state_indices": ints(4, 0, 2),
        "A_log": zeros(4, dtype=f32),
        "dt_bias": zeros(128, dtype=f32),
    }
    return call | changes


def steps(**changes: Any) -> dict[str, Any]:
    """The same with a slot per step."""
    slots = {"ssm_state_indices": ints([0, 1, 2], [3, 4, -1], [-1, -1, -1])}
    return decode() | slots | {"num_accepted_tokens": ints(1, 2, 1)} | changes


RECURRENT_RULES = [
    *(
        wrong_type(f"{name} is no tensor", decode(**{name: [1.0]}), f"`{name}`", "list")
        for name in ("q", "k", "v", "raw_gate", "beta", "state", "cu_seqlens")
    ),
    wrong_type("q is float32", decode(q=zeros(1, 4, 2, 32, dtype=f32)), "`q`", "float32"),
    wrong_type("k has another dtype", decode(k=zeros(1, 4, 2, 32).half()), "`k`", "bfloat16"),
    wrong_value("layout", decode(layout="SBND"), "`layout`", "BSND", "NTD", "SBND"),
    wrong_value("rank", decode(q=zeros(4, 2, 32)), "`q`", "(4, 2, 32)"),
    wrong_value("q is strided", decode(q=zeros(1, 4, 2, 64)[..., ::2]), "`q`", "contiguous()"),
    wrong_value("k differs", decode(k=zeros(1, 4, 1, 32)), "`k`", "shape of q"),
    wrong_value("tokens differ", decode(v=zeros(1, 5, 4, 16)), "`v`", "(1, 5, 4, 16)"),
    wrong_value("heads", decode(v=zeros(1, 4, 3, 16)), "heads", "3"),
    wrong_value("K is no multiple", decode(q=zeros(1, 4, 2, 40), k=zeros(1, 4, 2, 40)), "40"),
    wrong_value("raw_gate shape", decode(raw_gate=zeros(1, 4, 4, 16)), "`raw_gate`"),
    wrong_value("beta shape", decode(beta=zeros(1, 4, 2)), "`beta`"),
    wrong_value("A_log is missing", decode(A_log=None), "`A_log`", "use_gate_in_kernel"),
    wrong_value("A_log without gate", decode(use_gate_in_kernel=False), "`A_log`", "None"),
    wrong_value("dt_bias size", decode(dt_bias=zeros(64, dtype=f32)), "`dt_bias`", "128"),
    wrong_value("lower bound", decode(safe_gate=True, lower_bound=-6.0), "`lower_bound`", "-6"),
    wrong_value("doubled beta", decode(allow_neg_eigval=True), "`allow_neg_eigval`"),
    wrong_value("scale", decode(scale=math.inf), "`scale`", "inf"),
    wrong_type("flag", decode(state_v_first="yes"), "`state_v_first`", "str"),
    wrong_type("output flag", decode(output_final_state=None), "`output_final_state`"),
    wrong_value("skip index", decode(skip_index_below=-1), "`skip_index_below`", "-1"),
    wrong_type("state dtype", decode(state=zeros(5, 4, 16, 32).double()), "`state`", "float64"),
    wrong_value("state is K-first", decode(state=zeros(5, 4, 32, 16)), "`state`", "V before K"),
    wrong_value("state is V-first", decode(state_v_first=False), "`state`", "K before V"),
    wrong_value(
        "state columns apart", decode(state=zeros(5, 4, 32, 16).mT), "`state`", "contiguous()"
    ),
    wrong_value(
        "state rows shared",
        decode(state=zeros(1, 4, 16, 32).expand(5, 4, 16, 32)),
        "`state`",
        "slots apart",
    ),
    wrong_value("as many states as sequences", decode(ssm_state_indices=None), "`state`", "3", "5"),
    wrong_type("starts are floats", decode(cu_seqlens=zeros(4)), "`cu_seqlens`", "int32"),
    wrong_value("starts are none", decode(cu_seqlens=ints(0)), "`cu_seqlens`", "N + 1"),
    wrong_value(
        "starts of a batch",
        decode(
            q=zeros(2, 4, 2, 32),
            k=zeros(2, 4, 2, 32),
            v=zeros(2, 4, 4, 16),
            raw_gate=zeros(2, 4, 4, 32),
            beta=zeros(2, 4, 4),
        ),
        "one batch entry",
        "2",
    ),
    wrong_value(
        "an index each", decode(ssm_state_indices=ints(1, 2)), "`ssm_state_indices`", "(3,)"
    ),
    wrong_type("indices", decode(ssm_state_indices=zeros(3)), "`ssm_state_indices`", "int64"),
    wrong_value(
        "accepted without steps",
        decode(num_accepted_tokens=ints(1, 1, 1)),
        "`ssm_state_indices`",
        "num_accepted_tokens",
    ),
    wrong_value(
        "accepted without indices",
        decode(ssm_state_indices=None, num_accepted_tokens=ints(1, 1, 1)),
        "`num_accepted_tokens`",
    ),
    wrong_value(
        "accepted count", steps(num_accepted_tokens=ints(1, 1)), "`num_accepted_tokens`", "(3,)"
    ),
    unbuilt("gradient", decode(v=zeros(1, 4, 4, 16).requires_grad_()), "`v`", "gradient"),
]


def prefill(**changes: Any) -> dict[str, Any]:
    """Two sequences in 8 tokens of 24 channels, width 4."""
    call = {
        "x": zeros(8, 24).t(),
        "weight": zeros(24, 4),
        "bias": zeros(24),
        "conv_states": zeros(5, 24, 3),
        "has_initial_state": torch.tensor([True, False]),
        "cache_indices": ints(4, 0),
        "query_start_loc": ints(0, 3, 8),
    }
    return call | changes


FN_RULES = [
    *(
        wrong_type(f"{name} is no tensor", prefill(**{name: 1}), f"`{name}`", "int")
        for name in ("x", "weight", "bias", "conv_states", "has_initial_state", "cache_indices")
    ),
    wrong_type("x is integer", prefill(x=ints([1, 2], [3, 4])), "`x`", "float16", "int32"),
    wrong_value("x rank", prefill(x=zeros(8)), "`x`", "(8,)"),
    wrong_value("x of a batch", prefill(x=zeros(2, 24, 8)), "`x`", "query_start_loc"),
    wrong_value("no channels", prefill(x=zeros(0, 8)), "`x`", "channels"),
    wrong_value("channels", prefill(weight=zeros(16, 4)), "`weight`", "24", "(16, 4)"),
    wrong_value("width", prefill(weight=zeros(24, 6)), "`weight`", "5", "(24, 6)"),
    wrong_value("bias", prefill(bias=zeros(4)), "`bias`", "(24,)"),
    wrong_value("bias apart", prefill(bias=zeros(48)[::2]), "`bias`", "contiguous()"),
    wrong_value("columns", prefill(conv_states=zeros(5, 24, 2)), "`conv_states`", "3 columns"),
    wrong_value(
        "a state each",
        prefill(conv_states=zeros(1, 24, 3), cache_indices=None),
        "`conv_states`",
        "2 sequences",
    ),
    wrong_value(
        "shared states",
        prefill(conv_states=zeros(1, 24, 3).expand(5, 24, 3)),
        "`conv_states`",
        "apart",
    ),
    wrong_value(
        "a state past 2^31 elements",
        {name: value.to("meta") for name, value in prefill().items()}
        | {"conv_states": torch.empty_strided((5, 24, 3), (1, 2**27, 5), device="meta")},
        "`conv_states`",
        "2^31",
    ),
    wrong_value("no states", prefill(conv_states=None), "`has_initial_state`", "conv_states"),
    wrong_type("flags", prefill(has_initial_state=ints(1, 0)), "`has_initial_state`", "bool"),
    wrong_value(
        "a flag each",
        prefill(has_initial_state=torch.tensor([True])),
        "`has_initial_state`",
        "(2,)",
    ),
    wrong_value("an index each", prefill(cache_indices=ints(1)), "`cache_indices`", "(2,)"),
    wrong_value("starts", prefill(query_start_loc=ints(0)), "`query_start_loc`", "N + 1"),
    wrong_value("activation", prefill(activation="gelu"), "`activation`", "silu", "gelu"),
    wrong_type("activation type", prefill(activation=1.0), "`activation`", "float"),
    wrong_type("pad slot", prefill(pad_slot_id=None), "`pad_slot_id`", "NoneType"),
    unbuilt("gradient", prefill(weight=zeros(24, 4).requires_grad_()), "`weight`", "gradient"),
]


def update(**changes: Any) -> dict[str, Any]:
    """Two sequences in 3 tokens of 24 channels, width 4, speculative."""
    call = {
        "x": zeros(3, 24),
        "conv_state": zeros(5, 24, 4),
        "weight": zeros(24, 4),
        "conv_state_indices": ints(4, 0),
        "num_accepted_tokens": ints(1, 2),
        "query_start_loc": ints(0, 1, 3),
        "max_query_len": 2,
    }
    return call | changes


UPDATE_RULES = [
    wrong_value("x rank", update(x=zeros(1, 3, 24)), "`x`", "(T, dim)", "query_start_loc"),
    wrong_value(
        "x of one axis", update(x=zeros(24), query_start_loc=None), "`x`", "(B, dim, L)", "(24,)"
    ),
    wrong_value("longest", update(max_query_len=-1), "`max_query_len`", "-1"),
    wrong_value(
        "longest of a batch",
        update(x=zeros(2, 24, 2), query_start_loc=None),
        "`max_query_len`",
        "query_start_loc",
    ),
    wrong_value("room", update(max_query_len=3), "`conv_state`", "5 columns", "4"),
    wrong_value("accepted", update(num_accepted_tokens=ints(1)), "`num_accepted_tokens`", "(2,)"),
    wrong_value(
        "accepted apart",
        update(num_accepted_tokens=ints(1, 1, 1, 1)[::2]),
        "`num_accepted_tokens`",
        "contiguous()",
    ),
    wrong_value("indices", update(conv_state_indices=ints(1)), "`conv_state_indices`", "(2,)"),
    wrong_type("states", update(conv_state=None), "`conv_state`", "NoneType"),
    unbuilt("gradient", update(x=zeros(3, 24).requires_grad_()), "`x`", "gradient"),
]


def norm(**changes: Any) -> dict[str, Any]:
    return {"x": zeros(4, 2, 64), "gate": zeros(4, 2, 64), "weight": zeros(64)} | changes


NORM_RULES = [
    *(
        wrong_type(f"{name} is no tensor", norm(**{name: 1}), f"`{name}`", "int")
        for name in ("x", "gate", "weight", "bias")
    ),
    wrong_type("dtype", norm(x=zeros(4, 2, 64).double()), "`x`", "float64"),
    wrong_value("no axes", norm(x=torch.tensor(1.0)), "`x`", "()"),
    wrong_value("wide rows", norm(x=zeros(2, 2048)), "`x`", "1024", "2048"),
    wrong_value("gate", norm(gate=zeros(4, 2, 32)), "`gate`", "(4, 2, 32)"),
    wrong_value("weight", norm(weight=zeros(32)), "`weight`", "(64,)"),
    wrong_value("bias", norm(bias=zeros(128)[::2]), "`bias`", "contiguous"),
    wrong_value("eps", norm(eps=-1.0), "`eps`", "-1"),
    wrong_value("activation", norm(activation="relu"), "`activation`", "sigmoid", "relu"),
    unbuilt("gradient", norm(gate=zeros(4, 2, 64).requires_grad_()), "`gate`", "gradient"),
]

OPERATORS = {
    recurrent_kda: RECURRENT_RULES,
    causal_conv1d_fn: FN_RULES,
    causal_conv1d_update: UPDATE_RULES,
    rms_norm_gated: NORM_RULES,
}
RULES = [(operator, rule) for operator, rules in OPERATORS.items() for rule in rules]


@pytest.fixture(autouse=True)
def _no_launch() -> Any:
    """Refuse every launch: a rule must be checked before."""
    with mock.patch("fa_triton.launch.Runner._launch", side_effect=AssertionError("launched")):
        yield


@pytest.mark.parametrize(
    ("operator", "refusal"), RULES, ids=[f"{op.__name__}-{rule}" for op, rule in RULES]
)
def test_a_broken_rule_is_refused(operator: Any, refusal: Refusal) -> None:
    assert_refused(operator, refusal)


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        (recurrent_kda, decode()),
        (recurrent_kda, steps()),
        (causal_conv1d_fn, prefill()),
        (causal_conv1d_update, update()),
        (rms_norm_gated, norm()),
    ],
)
def test_the_calls_that_the_rules_break_are_valid(operator: Any, call: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="launched"):
        operator(**call)


# Values that lie on the device: read on demand only.
VALUE_RULES = [
    (recurrent_kda, wrong_value("first start", decode(cu_seqlens=ints(1, 2, 2, 4)), "[0]` must")),
    (recurrent_kda, wrong_value("falling", decode(cu_seqlens=ints(0, 3, 2, 4)), "decrease", "3")),
    (recurrent_kda, wrong_value("too many", decode(cu_seqlens=ints(0, 1, 2, 9)), "T = 4", "9")),
    (recurrent_kda, wrong_value("slot", decode(ssm_state_indices=ints(5, 0, 1)), "below 5", "5")),
    (recurrent_kda, wrong_value("twice", decode(ssm_state_indices=ints(1, 0, 1)), "once", "1")),
    (
        recurrent_kda,
        wrong_value("accepted", steps(num_accepted_tokens=ints(4, 1, 1)), "[0]`", "3", "4"),
    ),
    (
        recurrent_kda,
        wrong_value("steps", steps(ssm_state_indices=ints([0, 1], [3, 4], [2, 1])), "column", "3"),
    ),
    (causal_conv1d_fn, wrong_value("slot", prefill(cache_indices=ints(-2, 0)), "below 5", "-2")),
    (causal_conv1d_fn, wrong_value("twice", prefill(cache_indices=ints(1, 1)), "once", "1")),
    (causal_conv1d_fn, wrong_value("starts", prefill(query_start_loc=ints(0, 9, 8)), "decrease")),
    (causal_conv1d_update, wrong_value("longest", update(query_start_loc=ints(0, 0, 3)), "3", "2")),
    (
        causal_conv1d_update,
        wrong_value("accepted", update(num_accepted_tokens=ints(3, 1)), "[0]`", "2", "3"),
    ),
]


@pytest.mark.parametrize(
    ("operator", "refusal"), VALUE_RULES, ids=[f"{op.__name__}-{rule}" for op, rule in VALUE_RULES]
)
def test_values_are_checked_on_demand(
    operator: Any, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="launched"):
        operator(**refusal.call)
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")
    assert_refused(operator, refusal)


def test_skipped_and_empty_sequences_may_hold_any_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")
    calls = [
        (recurrent_kda, decode(ssm_state_indices=ints(-9, 99, 2))),
        (recurrent_kda, steps(ssm_state_indices=ints([0, 99, 99], [99, 99, 99], [-1, 0, 0]))),
        (recurrent_kda, steps(num_accepted_tokens=ints(1, 0, -5))),
        (chunk_kda, pool(ssm_state_indices=ints(4, 4, -1))),
        (causal_conv1d_fn, prefill(cache_indices=ints(-1, 0))),
        (causal_conv1d_update, update(conv_state_indices=ints(-1, 0))),
    ]
    for operator, call in calls:
        with pytest.raises(AssertionError, match="launched"):
            operator(**call)


def test_dtypes_of_indices_are_free() -> None:
    wide = decode(cu_seqlens=ints(0, 1, 1, 4, dtype=torch.int64))
    with pytest.raises(AssertionError, match="launched"):
        recurrent_kda(**wide)
    assert wide["q"].dtype == bf16
