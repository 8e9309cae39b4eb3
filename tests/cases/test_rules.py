"""Every rule row: refused by the error that names its rule, taken, or not applicable."""

from __future__ import annotations

import pytest
import torch

from fa_triton.cases.case import RuleCase
from fa_triton.cases.files import parse_case
from fa_triton.cases.result import ACCEPTED, NOT_APPLICABLE, PLAN, REFUSED
from fa_triton.cases.run import describe, refusal, run_case
from tests.cases.library import RULES

CPU = torch.device("cpu")
NEGATIVE = [case for case in RULES if not case.succeeds]
REFUSALS = [case for case in NEGATIVE if case.ours.error]
TAKEN = [case for case in RULES if case.succeeds or case.ours.accepted]
# Columns of arguments, which an error must name; the rest are of results and formats.
ARGUMENTS = {
    "Attn_mask": "`attn_mask`",
    "AttnMask": "`attn_mask`",
    "BlockTable": "`block_table`",
    "Block_table": "`block_table`",
    "PA_no_block_table": "`block_table`",
    "CuSeqlensQ": "cu_seqlens_q",
    "Cu_seqlens": "`cu_seqlens_q`",
    "BSND_layout_with_cu_seqlens": "`cu_seqlens_q`",
    "CuSeqlensKv": "`cu_seqlens_kv`",
    "SequsedQ": "`seqused_q`",
    "SequsedKv": "seqused_kv",
    "Seqused_kv": "`seqused_kv",
    "Seqused_dtype": "`seqused_q`",
    "LayoutQ": ("`layout_q`", "`layout_kv`"),
    "LayoutKV": ("`layout_kv`", "`block_table`"),
    "LayoutOut": "`layout_out`",
    "Layout_out": "`layout_out`",
    "Layout_BNSD_InvalidOut": "`layout_out`",
    "KeyDtype": "`k`",
    "ValueDtype": "`v`",
    "QueryDtype": "`v`",
    "DtypeMismatch_qk": "`k`",
    "Mask_mode_0": "`attn_mask`",
    "Mask_mode_1": "`mask_mode`",
    "MaskMode": ("`attn_mask`", "`win_left`", "`win_right`"),
    "WinLeft": "`win_left`",
    "WinRight": "`win_right`",
    "Win_right": "`win_right`",
    "Max_seqlen": "`max_seqlen_q`",
    "MaxSeqlenKv": "`max_seqlen_kv`",
    "Sinks": "`sinks`",
    "Metadata": "`metadata`",
    "ReturnSoftmaxLse": "`return_softmax_lse`",
    "Return_softmax_lse": "`return_softmax_lse`",
    "SoftmaxScale": "`softmax_scale`",
    "KVShapeConsistency": "`v`",
    "ShapeMismatch_kv": "`v`",
    "value_S": "`v`",
    "BatchSize: PA": "`block_table`",
    "BatchSize": "batch size",
    "bSize": "batch size",
    "Axis_B": "`q`",
    "Empty_tensor_B": "`q`",
    "EmptyTensor": ("`k`", "`v`"),
    "N1Size: n1 == 0": "`q`",
    "N1Size: BSH": "`layout_q`",
    "N1Size": "heads of q",
    "Q_N_not": "heads of q",
    "Q_N_is": "`q`",
    "Q_S_is": "`q`",
    "N2Size: n2 == 0": "`k`",
    "N2Size: BSH": "`layout_kv`",
    "N2Size": "heads of q",
    "S1Size: BNSD": "`layout_q`",
    "S1Size": "`q`",
    "S2Size: PA": "page size",
    "S2Size": "`k`",
    "BlockSize": "page size",
    "PA_block_size": "page size",
    "QkHeadDim: d != k_d": "`k`",
    "QkHeadDim": "head dim of q",
    "D_not": "head dim of q",
    "VHeadDim: v_d": "head dim of v",
    "VHeadDim": "`v`",
    "QTSize": "`q`",
    "KTSize: TND layout: k_t == 0": "`k`",
    "KTSize: TND layout: k_t != cu": "`cu_seqlens_kv",
    "KTSize": "`v`",
    "ShapeDimension: query": "`q`",
    "ShapeDimension: key": "`k`",
    "ShapeDimension: value": "`v`",
}


def named_argument(annotation: str) -> tuple[str, ...]:
    """What the message must name, by the longest beginning of the annotation."""
    known = max((start for start in ARGUMENTS if annotation.startswith(start)), key=len)
    names = ARGUMENTS[known]
    return (names,) if isinstance(names, str) else names


def test_every_negative_row_has_one_verdict() -> None:
    for case in NEGATIVE:
        ours = case.ours
        assert bool(ours.error) + bool(ours.accepted) + bool(ours.not_applicable) == 1, case.id
        if ours.error:
            assert ours.says, case.id
        assert bool(ours.changes) == bool(ours.note), case.id


def test_rows_that_succeed_are_never_refused() -> None:
    for case in RULES:
        if case.succeeds:
            ours = case.ours
            assert (ours.error, ours.accepted, ours.not_applicable) == (None, "", ""), case.id


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_refused_by_its_rule(case: RuleCase) -> None:
    result = run_case(case, CPU)
    assert result.passed, result.detail
    assert result.path == REFUSED
    if case.annotation:
        error = refusal(describe(case))
        names = named_argument(case.annotation)
        assert any(name in str(error) for name in names), (names, str(error))


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case.id)
def test_taken_rows_are_valid_and_planned(case: RuleCase) -> None:
    result = run_case(case, CPU, max_gflop=0)
    assert result.passed, result.detail
    assert result.path == (PLAN if case.succeeds else ACCEPTED)


def test_rows_that_nothing_corresponds_to_are_listed() -> None:
    listed = [case for case in NEGATIVE if case.ours.not_applicable]
    assert len(listed) == 31
    for case in listed:
        result = run_case(case, CPU)
        assert (result.path, result.passed, result.detail) == (
            NOT_APPLICABLE,
            True,
            case.ours.not_applicable,
        )


def row(expect: str, ours: dict[str, object] | None = None, **cells: str) -> RuleCase:
    valid = {
        "q_shape": "2 8 4 64",
        "k_shape": "2 16 2 64",
        "v_shape": "2 16 2 64",
        "layout_q": "BSND",
        "layout_kv": "BSND",
        "layout_out": "BSND",
    }
    case = parse_case({"expectResult": expect, "ours": ours or {}} | valid | cells)
    assert isinstance(case, RuleCase)
    return case


def test_a_valid_row_that_should_fail_fails() -> None:
    result = run_case(row("FAIL"), CPU)
    assert not result.passed
    assert "got accepted" in result.detail


def test_another_error_than_the_named_one_fails() -> None:
    named = {"error": "TypeError", "says": ["`win_left`", "bogus"]}
    result = run_case(row("FAIL", named, win_left="4"), CPU)
    assert not result.passed
    for part in ("must be refused by TypeError", "'bogus'", "ValueError: `win_left` must be"):
        assert part in result.detail


def test_a_change_may_not_break_a_valid_row() -> None:
    result = run_case(row("FAIL", {"changes": {"win_left": "4"}, "note": "x"}), CPU)
    assert not result.passed


def test_a_row_without_our_part_is_refused_by_any_error() -> None:
    assert run_case(row("FAIL", mask_mode="1"), CPU).passed


def test_an_invalid_row_that_should_succeed_fails() -> None:
    result = run_case(row("SUCCESS", mask_mode="1"), CPU)
    assert not result.passed
    assert result.detail.startswith("ValueError: `mask_mode`")


def test_a_wrong_shape_of_the_result_fails() -> None:
    result = run_case(row("SUCCESS", attn_out_shape="2 4 8 64"), CPU, max_gflop=0)
    assert not result.passed
    assert "out must be torch.float16 (2, 4, 8, 64)" in result.detail


def test_unreadable_rows_fail() -> None:
    result = run_case(row("FAIL", q_shape="many"), CPU)
    assert not result.passed
    assert "unreadable" in result.detail
