"""Every rule of ``chunk_kda_fwd``, ``chunk_kda`` and ``kda_gate_cumsum``, one by one."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch

from fa_triton import chunk_kda, chunk_kda_fwd, kda_gate_cumsum
from tests.validation.kda_calls import bf16, dense, f32, gate_only, packed, pool, raw_gate, zeros
from tests.validation.refusals import Refusal, assert_refused, unbuilt, wrong_type, wrong_value

f16, f64 = torch.float16, torch.float64


def strided(*shape: int, dtype: torch.dtype = bf16) -> torch.Tensor:
    """Return a tensor whose last axis has stride 2."""
    return zeros(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2]


TENSOR_RULES = [
    *(
        wrong_type(f"{name} is no tensor", dense(**{name: [1.0]}), f"`{name}`", "list")
        for name in ("q", "k", "v", "g", "beta")
    ),
    *(
        wrong_type(
            f"{name} is float32",
            dense(**{name: dense()[name].float()}),
            f"`{name}`",
            "float16",
            "bfloat16",
            "float32",
        )
        for name in ("q", "k", "v")
    ),
    *(
        wrong_type(
            f"{name} is float16",
            dense(**{name: dense()[name].half()}),
            f"`{name}`",
            "float32",
            "bfloat16",
            "float16",
        )
        for name in ("g", "beta")
    ),
    wrong_type("k has another dtype", dense(k=zeros(2, 8, 2, 32, dtype=f16)), "`k`", "bfloat16"),
    wrong_type("v has another dtype", dense(v=zeros(2, 8, 4, 16, dtype=f16)), "`v`", "bfloat16"),
    *(
        wrong_value(
            f"{name} of rank 3 in BSND",
            dense(**{name: dense()[name][0]}),
            f"`{name}`",
            "BSND",
        )
        for name in ("q", "k", "v", "g", "beta")
    ),
    *(
        wrong_value(
            f"{name} of rank 4 in TND", packed(**{name: dense()[name][:1]}), f"`{name}`", "TND"
        )
        for name in ("q", "k", "v", "g", "beta")
    ),
    wrong_value("k has other tokens", dense(k=zeros(2, 9, 2, 32)), "`k`", "(2, 9, 2, 32)"),
    wrong_value("k has other heads", dense(k=zeros(2, 8, 4, 32)), "`k`", "(2, 8, 4, 32)"),
    wrong_value("k has another head dim", dense(k=zeros(2, 8, 2, 64)), "`k`", "(2, 8, 2, 64)"),
    wrong_value("v has other tokens", dense(v=zeros(2, 9, 4, 16)), "`v`", "(2, 9, 4, 16)"),
    wrong_value("v has another batch", dense(v=zeros(3, 8, 4, 16)), "`v`", "(3, 8, 4, 16)"),
    wrong_value("g has q's heads", dense(g=zeros(2, 8, 2, 32, dtype=f32)), "`g`", "(2, 8, 2, 32)"),
    wrong_value("g has v's dim", dense(g=zeros(2, 8, 4, 16, dtype=f32)), "`g`", "(2, 8, 4, 16)"),
    wrong_value("beta has q's heads", dense(beta=zeros(2, 8, 2, dtype=f32)), "`beta`", "(2, 8, 2)"),
    *(
        wrong_value(
            f"{name} is not dense in its last axis",
            dense(**{name: strided(*dense()[name].shape, dtype=dense()[name].dtype)}),
            f"`{name}`",
            "dense",
            "contiguous()",
        )
        for name in ("q", "k", "v", "g")
    ),
    wrong_value("v has three heads", dense(v=zeros(2, 8, 3, 16)), "heads", "3"),
    wrong_value(
        "fewer value heads than query heads",
        dense(q=zeros(2, 8, 8, 32), k=zeros(2, 8, 8, 32)),
        "heads",
        "8",
    ),
    wrong_value(
        "130 value heads",
        dense(v=zeros(2, 8, 130, 16)),
        "heads",
        "128",
        "130",
    ),
    wrong_value(
        "no batch entry",
        {
            name: value[:0] if isinstance(value, torch.Tensor) else value
            for name, value in dense().items()
        },
        "`q`",
        "batch entry",
        "(0, 8, 2, 32)",
    ),
    wrong_value("no heads", dense(q=zeros(2, 8, 0, 32), k=zeros(2, 8, 0, 32)), "heads", "0"),
    *(
        wrong_value(
            f"K {size}", dense(q=zeros(2, 8, 2, size), k=zeros(2, 8, 2, size)), "16", str(size)
        )
        for size in (8, 24, 40, 272)
    ),
    *(wrong_value(f"V {size}", dense(v=zeros(2, 8, 4, size)), "16", str(size)) for size in (8, 40)),
    wrong_value("V 512", dense(v=zeros(2, 8, 4, 512)), "256", "512"),
    unbuilt(
        "q requires a gradient",
        dense(q=zeros(2, 8, 2, 32).requires_grad_()),
        "`q`",
        "gradient",
        "detach()",
    ),
    unbuilt(
        "g requires a gradient",
        dense(g=zeros(2, 8, 4, 32, dtype=f32).requires_grad_()),
        "`g`",
        "gradient",
    ),
    unbuilt(
        "A_log requires a gradient",
        raw_gate(A_log=zeros(4, dtype=f32).requires_grad_()),
        "`A_log`",
        "gradient",
    ),
]

OPTION_RULES = [
    *(
        wrong_value(f"layout {layout}", dense(layout=layout), "`layout`", "BSND, BNSD, TND, NTD")
        for layout in ("bsnd", "BSH", "SBND", "")
    ),
    wrong_type("layout is None", dense(layout=None), "`layout`", "NoneType"),
    *(
        wrong_value(f"chunk_size {size}", dense(chunk_size=size), "`chunk_size`", "64", str(size))
        for size in (0, -64, 1, 48, 100, 256)
    ),
    wrong_type("chunk_size is a float", dense(chunk_size=64.0), "`chunk_size`", "float"),
    wrong_type("chunk_size is a bool", dense(chunk_size=True), "`chunk_size`", "bool"),
    wrong_type("scale is a string", dense(scale="1"), "`scale`", "str"),
    wrong_value("scale is NaN", dense(scale=math.nan), "`scale`", "finite"),
    wrong_value("scale is infinite", dense(scale=math.inf), "`scale`", "finite"),
    *(
        wrong_type(f"{name} is a string", dense(**{name: "yes"}), f"`{name}`", "str")
        for name in (
            "output_final_state",
            "safe_gate",
            "use_gate_in_kernel",
            "disable_recompute",
            "return_intermediate_states",
            "state_v_first",
            "use_qk_l2norm_in_kernel",
            "use_beta_sigmoid_in_kernel",
            "allow_neg_eigval",
        )
    ),
    wrong_value(
        "doubled beta without its sigmoid",
        dense(allow_neg_eigval=True),
        "`allow_neg_eigval`",
        "use_beta_sigmoid_in_kernel",
    ),
    wrong_type("outputs is a string", dense(outputs="h"), "`outputs`", "'h'"),
    wrong_value("outputs has an unknown name", dense(outputs=("h", "s")), "`outputs`", "'s'"),
]

GATE_RULES = [
    wrong_value("raw gate without A_log", raw_gate(A_log=None), "`A_log`", "None"),
    wrong_value("A_log without raw gate", dense(A_log=zeros(4, dtype=f32)), "`A_log`"),
    wrong_value("dt_bias without raw gate", dense(dt_bias=zeros(128, dtype=f32)), "`dt_bias`"),
    wrong_value(
        "A_log per query head", raw_gate(A_log=zeros(2, dtype=f32)), "`A_log`", "4", "(2,)"
    ),
    wrong_value("dt_bias per head", raw_gate(dt_bias=zeros(4, dtype=f32)), "`dt_bias`", "128"),
    wrong_type("A_log is bfloat16", raw_gate(A_log=zeros(4)), "`A_log`", "float32", "bfloat16"),
    wrong_type("dt_bias is bfloat16", raw_gate(dt_bias=zeros(128)), "`dt_bias`", "bfloat16"),
    wrong_type("A_log is a list", raw_gate(A_log=[0.0] * 4), "`A_log`", "list"),
    *(
        wrong_value(
            f"lower_bound {bound}",
            raw_gate(safe_gate=True, lower_bound=bound),
            "`lower_bound`",
            "[-5, 0)",
        )
        for bound in (-5.001, 0.0, 1.0, -100)
    ),
    wrong_value(
        "lower_bound is NaN", raw_gate(safe_gate=True, lower_bound=math.nan), "`lower_bound`"
    ),
    wrong_type(
        "lower_bound is a string", raw_gate(safe_gate=True, lower_bound="-5"), "`lower_bound`"
    ),
]

LENGTH_RULES = [
    wrong_value(
        "lengths with a batch", dense(cu_seqlens=torch.tensor([0, 8])), "batch", "cu_seqlens", "2"
    ),
    wrong_value("one length", packed(cu_seqlens=torch.tensor([0])), "`cu_seqlens`", "1"),
    wrong_value("no length", packed(cu_seqlens=[]), "`cu_seqlens`", "0"),
    wrong_value(
        "lengths of rank 2", packed(cu_seqlens=torch.tensor([[0, 8]])), "`cu_seqlens`", "(1, 2)"
    ),
    wrong_type(
        "lengths are floats", packed(cu_seqlens=torch.tensor([0.0, 8.0])), "`cu_seqlens`", "float32"
    ),
    wrong_type("a length is a float", packed(cu_seqlens=[0, 8.0]), "`cu_seqlens[1]`", "float"),
    wrong_type("lengths are a number", packed(cu_seqlens=8), "`cu_seqlens`", "int"),
    wrong_type("lengths are a string", packed(cu_seqlens="08"), "`cu_seqlens`", "str"),
    wrong_type("lengths are pairs", packed(cu_seqlens=[[0, 3], [3, 8]]), "`cu_seqlens[0]`", "list"),
    wrong_type("a length is a string", packed(cu_seqlens=[0, ""]), "`cu_seqlens[1]`", "str"),
    wrong_value("a length past int64", packed(cu_seqlens=[0, 2**70]), "`cu_seqlens[1]`"),
    wrong_value("lengths start late", packed(cu_seqlens=[1, 8]), "`cu_seqlens", "0", "1"),
    wrong_value("lengths end early", packed(cu_seqlens=[0, 7]), "`cu_seqlens", "8", "7"),
    wrong_value("lengths end late", packed(cu_seqlens=[0, 9]), "`cu_seqlens", "8", "9"),
    wrong_value("lengths decrease", packed(cu_seqlens=[0, 6, 5, 8]), "`cu_seqlens`", "6", "5"),
    wrong_value("chunk_indices without lengths", dense(chunk_indices=[0, 0]), "`chunk_indices`"),
    wrong_value(
        "an odd number of chunk_indices", packed(chunk_indices=[0, 0, 2]), "`chunk_indices`", "odd"
    ),
    wrong_value(
        "chunk_indices of triples",
        packed(chunk_indices=torch.zeros(2, 3, dtype=torch.int64)),
        "`chunk_indices`",
        "(2, 3)",
    ),
    wrong_type(
        "ragged chunk_indices",
        packed(chunk_indices=[[0, 0], [2], [0]]),
        "`chunk_indices[0]`",
        "list",
    ),
    wrong_type("chunk_indices are floats", packed(chunk_indices=torch.zeros(4)), "`chunk_indices`"),
    wrong_value(
        "too few chunk_indices", packed(chunk_indices=[0, 0]), "`chunk_indices`", "2 pairs", "1"
    ),
    wrong_value(
        "chunk_indices of another chunk",
        packed(chunk_indices=[[0, 0], [1, 0]]),
        "`chunk_indices`",
        "[2, 0]",
        "[1, 0]",
    ),
]

STATE = (2, 4, 32, 16)
STATE_RULES = [
    wrong_type("the state is a list", dense(initial_state=[0.0]), "`initial_state`", "list"),
    wrong_type("the state is bfloat16", dense(initial_state=zeros(*STATE)), "`initial_state`"),
    wrong_value(
        "a state too few", dense(initial_state=zeros(1, 4, 32, 16, dtype=f32)), "`initial_state`"
    ),
    wrong_value(
        "a state per packed sequence is missing",
        packed(initial_state=zeros(2, 4, 32, 16, dtype=f32)),
        "`initial_state`",
        "(3, 4, 32, 16)",
    ),
    wrong_value(
        "the state is V first",
        dense(initial_state=zeros(2, 4, 16, 32, dtype=f32)),
        "`initial_state`",
        "[K, V]",
    ),
    wrong_value(
        "the state is K first",
        dense(initial_state=zeros(2, 4, 32, 16, dtype=f32), state_v_first=True),
        "`initial_state`",
        "[V, K]",
    ),
    wrong_value(
        "the state has query heads",
        dense(initial_state=zeros(2, 2, 32, 16, dtype=f32)),
        "`initial_state`",
    ),
    unbuilt(
        "the state requires a gradient",
        dense(initial_state=zeros(*STATE, dtype=f32).requires_grad_()),
        "`initial_state`",
    ),
]

FORWARD_RULES = [*TENSOR_RULES, *OPTION_RULES, *GATE_RULES, *LENGTH_RULES, *STATE_RULES]

POOL_RULES = [
    wrong_value("indices without a pool", pool(initial_state=None), "`initial_state`", "pool"),
    wrong_type("indices are floats", pool(ssm_state_indices=torch.zeros(3)), "`ssm_state_indices`"),
    wrong_value(
        "an index too few",
        pool(ssm_state_indices=torch.zeros(2, dtype=torch.int32)),
        "`ssm_state_indices`",
        "(3,)",
    ),
    wrong_value(
        "indices of rank 2",
        pool(ssm_state_indices=torch.zeros(3, 1, dtype=torch.int32)),
        "`ssm_state_indices`",
        "(3, 1)",
    ),
    wrong_type("indices are a list", pool(ssm_state_indices=[0, 1, 2]), "`ssm_state_indices`"),
    wrong_type(
        "the pool is float64", pool(initial_state=zeros(5, 4, 32, 16, dtype=f64)), "`initial_state`"
    ),
    wrong_value(
        "the pool has another shape", pool(initial_state=zeros(5, 4, 16, 32, dtype=f32)), "slots"
    ),
    wrong_value(
        "a slot of the pool is not dense",
        pool(initial_state=zeros(5, 32, 4, 16, dtype=f32).transpose(1, 2)),
        "`initial_state`",
        "dense",
    ),
    wrong_value(
        "slots share memory",
        pool(initial_state=zeros(1, 4, 32, 16, dtype=f32).expand(5, 4, 32, 16)),
        "`initial_state`",
        "slots apart",
    ),
    unbuilt(
        "the pool requires a gradient",
        pool(initial_state=zeros(5, 4, 32, 16, dtype=f32).requires_grad_()),
        "`initial_state`",
    ),
    wrong_type(
        "has_initial_state is int32",
        pool(has_initial_state=torch.zeros(3, dtype=torch.int32)),
        "`has_initial_state`",
        "bool",
    ),
    wrong_value(
        "has_initial_state is too short",
        pool(has_initial_state=torch.zeros(2, dtype=torch.bool)),
        "`has_initial_state`",
        "(3,)",
    ),
    wrong_value(
        "has_initial_state without a state",
        packed(has_initial_state=torch.zeros(3, dtype=torch.bool)),
        "`has_initial_state`",
    ),
]

CUMSUM_RULES = [
    wrong_type("g is no tensor", gate_only(g=None), "`g`", "NoneType"),
    wrong_type("g is float16", gate_only(g=zeros(2, 4, 8, 32, dtype=f16)), "`g`", "float16"),
    wrong_value("g has rank 3", gate_only(g=zeros(4, 8, 32, dtype=f32)), "`g`", "BNSD"),
    wrong_value("layout", gate_only(layout="BSH"), "`layout`", "'BSH'"),
    wrong_value("chunk_size", gate_only(chunk_size=65), "`chunk_size`", "65"),
    wrong_value("no A_log", gate_only(use_gate_in_kernel=True), "`A_log`"),
    wrong_value("A_log", gate_only(A_log=zeros(4, dtype=f32)), "`A_log`"),
    wrong_value("batch with lengths", gate_only(cu_seqlens=[0, 8]), "batch", "2"),
    wrong_value(
        "lengths", gate_only(g=zeros(1, 4, 8, 32, dtype=f32), cu_seqlens=[0, 9]), "`cu_seqlens"
    ),
    unbuilt(
        "g requires a gradient",
        gate_only(g=zeros(2, 4, 8, 32, dtype=f32).requires_grad_()),
        "`g`",
        "gradient",
    ),
]

# Flags and names of results that the entry for inference does not have.
ONLY_FORWARD = {"disable_recompute", "return_intermediate_states", "outputs"}
CHUNK_RULES = [rule for rule in FORWARD_RULES if not rule.call.keys() & ONLY_FORWARD] + POOL_RULES


@pytest.fixture(autouse=True)
def _no_launch() -> Any:
    """Refuse every launch: a rule must be checked before."""
    with mock.patch("fa_triton.launch.Runner._launch", side_effect=AssertionError("launched")):
        yield


@pytest.mark.parametrize("refusal", FORWARD_RULES, ids=str)
def test_chunk_kda_fwd_refuses(refusal: Refusal) -> None:
    assert_refused(chunk_kda_fwd, refusal)


@pytest.mark.parametrize("refusal", CHUNK_RULES, ids=str)
def test_chunk_kda_refuses(refusal: Refusal) -> None:
    assert_refused(chunk_kda, refusal)


@pytest.mark.parametrize("refusal", CUMSUM_RULES, ids=str)
def test_kda_gate_cumsum_refuses(refusal: Refusal) -> None:
    assert_refused(kda_gate_cumsum, refusal)


@pytest.mark.parametrize(
    "call", [dense(), packed(), raw_gate()], ids=["dense", "packed", "raw gate"]
)
def test_the_calls_that_the_rules_break_are_valid(call: dict[str, Any]) -> None:
    for operator in (chunk_kda_fwd, chunk_kda):
        with pytest.raises(AssertionError, match="launched"):
            operator(**call)


def test_the_other_calls_are_valid() -> None:
    with pytest.raises(AssertionError, match="launched"):
        chunk_kda(**pool())
    with pytest.raises(AssertionError, match="launched"):
        kda_gate_cumsum(**gate_only())


def test_gradients_may_be_off() -> None:
    call = dense(q=zeros(2, 8, 2, 32).requires_grad_())
    with torch.no_grad(), pytest.raises(AssertionError, match="launched"):
        chunk_kda_fwd(**call)
