"""The judge: pieces cover every element once, and no kind of wrong result passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fa_triton.cases.attention_call import describe_attention
from fa_triton.cases.budget import Error, ErrorSum, Limits, limits
from fa_triton.cases.case import AttentionCase
from fa_triton.cases.files import parse_case
from fa_triton.cases.judge import judge
from fa_triton.cases.pieces import pieces
from fa_triton.cases.tensors import make_arguments
from fa_triton.reference import flash_attn_emulation, flash_attn_reference
from tests.oracle import compare

CASES: dict[str, dict[str, Any]] = {
    "dense": {"B": 5, "S1": 9, "S2": 40, "layout_q": "BSND", "mask_mode": 3},
    "transposed": {
        "B": 3, "S1": 9, "S2": 40, "layout_q": "BNSD", "layout_out": "BSND",
        "seqused_q": [9, 0, 4], "seqused_kv": [40, 7, 0],
    },
    "packed": {
        "layout_q": "TND", "cu_seqlens_q": [0, 4, 4, 15, 20], "mask_mode": 4, "win_left": 6,
        "cu_seqlens_kv": [0, 0, 30, 45, 45], "seqused_q": [4, 0, 9, 5],
    },
    "pages": {
        "B": 4, "S1": 3, "S2": 70, "layout_q": "BSND", "layout_kv": "PA_NZ", "block_size": 16,
        "seqused_kv": [70, 0, 16, 33],
    },
    "packed on pages": {
        "layout_q": "TND", "cu_seqlens_q": [0, 1, 6, 6], "layout_kv": "PA_BBND", "block_size": 16,
        "seqused_kv": [50, 20, 9], "mask_mode": 3,
    },
}  # fmt: skip


def arguments(name: str, **fields: Any) -> dict[str, Any]:
    shared = {"N1": 4, "N2": 2, "D": 64, "Dtype": "fp16", "return_softmax_lse": True}
    shared |= dict.fromkeys(("q_range", "k_range", "v_range"), (-5.0, 5.0))
    case = parse_case(shared | CASES[name] | fields)
    assert isinstance(case, AttentionCase)
    return make_arguments(describe_attention(case), torch.device("cpu"))


@pytest.mark.parametrize("elements", [1, 3000, 10**9])
@pytest.mark.parametrize("name", CASES)
def test_pieces_are_the_whole(name: str, elements: int) -> None:
    call = arguments(name)
    out, lse = flash_attn_reference(**call, out_dtype=torch.float64)
    seen_out, seen_lse = torch.zeros_like(out), torch.zeros_like(lse)
    for piece in pieces(call, out, lse, elements):
        part, part_lse = flash_attn_reference(**piece.arguments, out_dtype=torch.float64)
        assert piece.lse is not None
        torch.testing.assert_close(part, piece.out, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(part_lse, piece.lse, rtol=1e-12, atol=1e-12)
    for whole, seen in ((out, seen_out), (lse, seen_lse)):
        for piece in pieces(call, seen_out, seen_lse, elements):
            view = piece.out if seen is seen_out else piece.lse
            assert view is not None
            view += 1
        assert torch.equal(seen, torch.ones_like(whole))


def test_rows_behind_the_last_sequence_belong_to_it() -> None:
    call = arguments("packed")
    call["cu_seqlens_q"] = torch.tensor([0, 4, 4, 13, 18], dtype=torch.int32)
    out, lse = flash_attn_reference(**call)
    assert sum(piece.out.shape[0] for piece in pieces(call, out, lse, 1)) == 20


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_oracle_of_the_tests(name: str, dtype: str) -> None:
    call = arguments(name, Dtype=dtype)
    out, lse = flash_attn_emulation(**call)
    found = judge(call, out, lse)
    q, k, v = (call.pop(name) for name in "qkv")
    expected = compare(out, lse, q, k, v, **call)
    assert found.faults == expected.faults == ()
    assert found.error.rms == pytest.approx(expected.error.rms, rel=1e-9)
    assert found.error.largest == expected.error.largest
    assert found.error.vendor_fail_ratio == pytest.approx(expected.error.vendor_fail_ratio)
    assert found.limits.rms == pytest.approx(expected.rms_limit, rel=1e-9)
    assert found.limits.largest == pytest.approx(expected.max_limit, rel=1e-9)
    assert found.lse_error == expected.lse_error
    assert found.lse_limit == pytest.approx(expected.lse_limit)


def noisy(out: torch.Tensor, lse: torch.Tensor) -> None:
    out += (torch.rand(out.shape, generator=torch.Generator().manual_seed(1)) - 0.5) * 8e-3


def one_wrong_value(out: torch.Tensor, lse: torch.Tensor) -> None:
    out[1, 2, 1, 5] += 0.1


def one_nan(out: torch.Tensor, lse: torch.Tensor) -> None:
    out[0, 0, 0, 0] = torch.nan


def last_nan(out: torch.Tensor, lse: torch.Tensor) -> None:
    out[-1, -1, -1, -1] = torch.nan


def swapped_sequences(out: torch.Tensor, lse: torch.Tensor) -> None:
    out[[0, 1]] = out[[1, 0]]


def many_slightly_wrong(out: torch.Tensor, lse: torch.Tensor) -> None:
    out[:, ::3] *= 1.006


def finite_lse(out: torch.Tensor, lse: torch.Tensor) -> None:
    lse[2, 1, 3] = torch.inf


def wrong_lse(out: torch.Tensor, lse: torch.Tensor) -> None:
    lse[2, 1, 3] += 1e-3


def nan_lse(out: torch.Tensor, lse: torch.Tensor) -> None:
    lse[0, 0, 0] = torch.nan


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (noisy, "rms error"),
        (one_wrong_value, "largest error"),
        (one_nan, "rms error nan"),
        (last_nan, "largest error nan"),
        (swapped_sequences, "rms error"),
        (many_slightly_wrong, "CANN's tolerance"),
        (finite_lse, "+inf exactly"),
        (wrong_lse, "lse error"),
        (nan_lse, "lse error nan"),
    ],
)
def test_wrong_results_fail(spoil: Callable[[torch.Tensor, torch.Tensor], None], says: str) -> None:
    call = arguments("dense")
    out, lse = flash_attn_emulation(**call)
    assert judge(call, out, lse).faults == ()
    spoil(out, lse)
    assert says in "; ".join(judge(call, out, lse).faults)


def test_padding_rows_must_be_zero() -> None:
    call = arguments("transposed")
    out, lse = flash_attn_emulation(**call)
    out[1, 3] = 1.0
    assert judge(call, out, lse).faults


def test_without_log_sum_exp() -> None:
    call = arguments("pages") | {"return_softmax_lse": False}
    out, _ = flash_attn_emulation(**call)
    found = judge(call, out, None)
    assert (found.faults, found.lse_error, found.lse_limit) == ((), None, None)


def test_sums_of_errors_do_not_depend_on_the_pieces() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(1000, generator=generator, dtype=torch.float64)
    result = (exact + 1e-3 * torch.randn(1000, generator=generator)).half()
    whole, parts = ErrorSum(torch.float16), ErrorSum(torch.float16)
    whole.add(result, exact)
    for start in range(0, 1000, 300):
        parts.add(result[start : start + 300], exact[start : start + 300])
    assert parts.count == 1000
    assert parts.total().rms == pytest.approx(whole.total().rms)
    assert parts.total().largest == whole.total().largest
    assert parts.total().vendor_fail_ratio == whole.total().vendor_fail_ratio > 0


@pytest.mark.parametrize("nan_first", [True, False])
def test_a_nan_in_any_piece_stays(nan_first: bool) -> None:
    errors = ErrorSum(torch.bfloat16)
    good, bad = torch.ones(4), torch.tensor([1.0, torch.nan, 1.0, 1.0])
    for piece in (bad, good) if nan_first else (good, bad):
        errors.add(piece, torch.ones(4, dtype=torch.float64))
    total = errors.total()
    assert str(total.rms) == str(total.largest) == "nan"
    assert total.vendor_fail_ratio == 1 / 8


def test_a_tolerance_that_rounding_misses_is_relative_to_it() -> None:
    def share(of_emulation: float) -> Limits:
        return limits(
            Error(1e-3, 1e-2, of_emulation), count=10**8, exact_rms=1.0, exact_largest=2.0
        )

    assert share(0.001).vendor_fail_ratio == 0.005
    assert share(0.02).vendor_fail_ratio == pytest.approx(0.022, rel=1e-3)
