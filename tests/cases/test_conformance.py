"""The committed conformance page: whole, without failures, from the present list of cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fa_triton.cases.result import CaseResult
from fa_triton.cases.work import MAX_GFLOP
from perf.conformance import Operator, page
from tests.cases.library import ATTENTION, CASES, INCRE

LINK = re.compile(r"\[[^\]]*\]\((?:docs/)?conformance\.md\)")
INCRE_LINK = re.compile(r"\[[^\]]*\]\((?:docs/)?conformance_incre\.md\)")


def rows_of(document: Path) -> dict[str, list[str]]:
    """Rows of the tables of cases; the last table that has a case wins."""
    text = document.read_text()
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line[:2] == "| "]
    cells = [[cell.strip() for cell in line] for line in lines]
    return {line[0]: line for line in cells}


@pytest.fixture(scope="module")
def rows(repo_root: Path) -> dict[str, list[str]]:
    return rows_of(repo_root / "docs" / "conformance.md")


def test_every_case_passes(rows: dict[str, list[str]]) -> None:
    for case in CASES:
        assert "pass" in rows[case.id], case.id
        assert "fail" not in rows[case.id], case.id


def test_every_case_below_the_limit_is_computed(rows: dict[str, list[str]]) -> None:
    for case in ATTENTION:
        _, _, path, gflop, rms, *_ = rows[case.id]
        if path == "native":
            assert float(gflop) <= MAX_GFLOP
            # a row that sees one key is exact
            assert float(rms) >= 0
        else:
            assert path == "plan"
            assert float(gflop) > MAX_GFLOP
            assert rms == ""


@pytest.mark.parametrize("document", ["README.md", "docs/index.md"])
def test_the_pages_are_linked(repo_root: Path, document: str) -> None:
    text = (repo_root / document).read_text()
    assert LINK.search(text)
    assert INCRE_LINK.search(text)


def test_every_incremental_case_is_computed_or_refused(repo_root: Path) -> None:
    rows = rows_of(repo_root / "docs" / "conformance_incre.md")
    for case in INCRE:
        _, _, cann, path, rms, budget, verdict, told = rows[case.id]
        assert verdict == "pass", case.id
        assert cann == ("takes it" if case.succeeds else "refuses it")
        if case.ours.not_applicable:
            assert path == "not applicable"
        elif case.ours.error:
            assert (path, rms) == ("refused", "")
            assert case.ours.error in told
            assert case.ours.refused.replace("|", "\\|") in told
        else:
            assert path == "native", case.id
            assert float(rms) <= float(budget)


def test_refusals_of_what_cann_takes_are_listed_with_their_reasons() -> None:
    deviations = [case for case in INCRE if case.ours.refused]
    results = [CaseResult(case, "refused", True, detail="ValueError: x") for case in deviations]
    lines = list(page(results, MAX_GFLOP, Operator.incre_flash_attention))
    assert lines[0] == "# incre_flash_attention: conformance"
    for case in deviations:
        assert f"| {case.id} | {case.ours.refused} |" in lines


def test_a_failure_shows_on_the_page() -> None:
    results = [
        CaseResult(CASES[0], "plan", True, 12.5),
        CaseResult(CASES[1], "native", False, 1.0, detail="rms error 1 | above 0"),
    ]
    lines = list(page(results, MAX_GFLOP))
    assert "| strided | 2 | 1 | 1 | 1 | 1 |" in lines
    assert any("| fail | rms error 1 \\| above 0 |" in line for line in lines)
