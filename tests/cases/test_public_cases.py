"""CANN's public cases: all are validated, planned and traced for shapes; small ones computed.

What is left out here for its time is computed by ``make conformance``.
"""

from __future__ import annotations

import pytest
import torch

from fa_triton.cases.case import AttentionCase, RuleCase
from fa_triton.cases.result import PLAN
from fa_triton.cases.run import prepare, run_case
from fa_triton.cases.work import MAX_GFLOP
from tests.cases.library import ATTENTION, RULES

CPU = torch.device("cpu")
# What a test computes at most, in operations and in elements of q, k and v. The functional lists
# are computed up to the limit of the command.
TEST_GFLOP = 0.5
TEST_ELEMENTS = 2**24
FUNCTIONAL = ("strided", "infer")


def is_computed(case: AttentionCase | RuleCase) -> bool:
    prepared = prepare(case)
    if case.group in FUNCTIONAL:
        return prepared.gflop <= MAX_GFLOP
    call = prepared.call
    elements = sum(torch.Size(x.shape).numel() for x in (call.q, call.k, call.v))
    return prepared.gflop <= TEST_GFLOP and elements <= TEST_ELEMENTS


COMPUTED = [
    case for case in (*ATTENTION, *(case for case in RULES if case.succeeds)) if is_computed(case)
]


def test_the_functional_lists_are_computed() -> None:
    groups = [case.group for case in COMPUTED]
    assert (groups.count("strided"), groups.count("infer")) == (12, 12)


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.id)
def test_planned(case: AttentionCase) -> None:
    # below every number of operations, so that nothing is computed
    result = run_case(case, CPU, max_gflop=-1.0)
    assert result.passed, result.detail
    assert result.path == PLAN
    assert result.gflop is not None


@pytest.mark.forked
@pytest.mark.slow
@pytest.mark.usefixtures("nan_filled_memory")
@pytest.mark.parametrize("case", COMPUTED, ids=lambda case: case.id)
def test_computed(case: AttentionCase | RuleCase) -> None:
    result = run_case(case, CPU)
    assert result.passed, result.detail
    assert result.path == "native"
    assert result.judgement is not None


@pytest.mark.forked
def test_a_small_case_is_computed_in_a_quick_run() -> None:
    case = next(case for case in COMPUTED if case.id == "infer-s013")
    result = run_case(case, CPU)
    assert result.passed, result.detail
    assert result.judgement is not None
