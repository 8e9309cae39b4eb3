"""CANN's public cases of ``incre_flash_attention``: refused by their rules, or valid and computed.

What is left out here for its time is computed by ``make conformance``.
"""

from __future__ import annotations

import pytest
import torch

from fa_triton.cases.files import parse_case, with_changes
from fa_triton.cases.incre_call import meta_incre_arguments
from fa_triton.cases.incre_case import IncreCase
from fa_triton.cases.incre_run import incre_refusal
from fa_triton.cases.result import ACCEPTED, NOT_APPLICABLE, PLAN, REFUSED
from fa_triton.cases.run import run_case
from fa_triton.validation.incremental import validate_incre_flash_attention
from tests.cases.library import INCRE

CPU = torch.device("cpu")
# Elements of key and value that a test fills at most.
TEST_ELEMENTS = 2**21
LISTED = [case for case in INCRE if case.ours.not_applicable]
DEVIATIONS = [case for case in INCRE if case.ours.refused]
REFUSALS = [case for case in INCRE if case.ours.error]
TAKEN = [case for case in INCRE if not (case.ours.error or case.ours.not_applicable)]


def elements(case: IncreCase) -> int:
    arguments = meta_incre_arguments(with_changes(case))
    key = arguments["key"]
    return sum(tensor.numel() for tensor in (key if isinstance(key, list) else [key]))


COMPUTED = [case for case in TAKEN if elements(case) <= TEST_ELEMENTS]


def test_every_case_has_one_verdict() -> None:
    assert len(INCRE) == 154
    assert len(LISTED) == 1
    for case in INCRE:
        ours = case.ours
        if case.succeeds:
            # taken, or refused for a reason
            assert bool(ours.error) == bool(ours.refused), case.id
            assert not ours.accepted, case.id
        else:
            assert ours.error, case.id
            assert not ours.refused, case.id
        assert bool(ours.changes) == bool(ours.note), case.id
        assert bool(ours.error) == bool(ours.says), case.id


def test_deviations_from_the_lists_are_counted() -> None:
    # CANN takes these calls although they contradict its own documents
    assert sorted(case.group for case in DEVIATIONS) == ["tiling-950"] * 6 + ["tiling-a2"] * 3


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_refused_by_its_rule(case: IncreCase) -> None:
    result = run_case(case, CPU)
    assert result.passed, result.detail
    assert result.path == REFUSED
    assert str(incre_refusal(with_changes(case))) in result.detail


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case.id)
def test_taken(case: IncreCase) -> None:
    result = run_case(case, CPU, max_gflop=-1.0)
    assert result.passed, result.detail
    assert result.path == PLAN
    problem = validate_incre_flash_attention(**meta_incre_arguments(with_changes(case)))
    assert case.attention_out is not None
    assert problem.out_shape == tuple(case.attention_out.shape)


@pytest.mark.forked
@pytest.mark.slow
@pytest.mark.usefixtures("nan_filled_memory")
@pytest.mark.parametrize("case", COMPUTED, ids=lambda case: case.id)
def test_computed(case: IncreCase) -> None:
    result = run_case(case, CPU)
    assert result.passed, result.detail
    assert result.path == "native"
    assert result.judgement is not None


def test_listed_cases_are_not_applicable() -> None:
    for case in LISTED:
        assert run_case(case, CPU).path == NOT_APPLICABLE


def row(**fields: object) -> IncreCase:
    tensor = {"shape": [2, 16, 32], "dtype": "FLOAT16"}
    query = tensor | {"shape": [2, 1, 32]}
    valid = {"operator": "incre_flash_attention", "query": query, "key": tensor, "value": tensor}
    case = parse_case(valid | {"num_heads": 2} | fields)
    assert isinstance(case, IncreCase)
    return case


def test_a_valid_row_that_should_fail_fails() -> None:
    result = run_case(row(expect="FAIL"), CPU)
    assert (result.path, result.passed) == (ACCEPTED, False)


def test_another_error_than_the_named_one_fails() -> None:
    ours = {"error": "TypeError", "says": ["bogus"]}
    result = run_case(row(expect="FAIL", num_heads=3, ours=ours), CPU)
    assert not result.passed
    for part in ("must be refused by TypeError", "'bogus'", "ValueError: `query`"):
        assert part in result.detail


def test_an_invalid_row_that_should_succeed_fails() -> None:
    result = run_case(row(num_heads=3), CPU)
    assert not result.passed
    assert result.detail.startswith("ValueError: `query`")


def test_a_wrong_shape_of_the_result_fails() -> None:
    out = {"shape": [2, 2, 16], "dtype": "FLOAT16"}
    result = run_case(row(attention_out=out), CPU, max_gflop=-1.0)
    assert not result.passed
    assert "out must have shape (2, 2, 16), got (2, 1, 32)" in result.detail


def test_unreadable_rows_fail() -> None:
    half = {"shape": [2, 16, 32], "dtype": "HALF"}
    for case in (row(key=None, expect="FAIL"), row(key=half, expect="FAIL")):
        result = run_case(case, CPU)
        assert not result.passed
        assert "`key`" in result.detail


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="actual_seq_length"):
        row(actual_seq_length=[1])
