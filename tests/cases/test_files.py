"""Case files: the forms that are read, what a row may hold, and errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fa_triton.cases.case import AttentionCase, RuleCase
from fa_triton.cases.files import parse_case, read_cases, select_cases, with_changes
from tests.cases.library import ATTENTION, CASES, FILE, RULES

CASE: dict[str, Any] = {
    "id": "one",
    "B": 2,
    "N1": 4,
    "S1": 8,
    "D": 64,
    "Dtype": "fp16",
    "layout_q": "BSND",
}


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_public_lists_are_whole() -> None:
    assert len(ATTENTION) == 406
    assert len(RULES) == 176
    groups = {case.group for case in CASES}
    assert groups == {
        *("strided", "infer", "train", "train-packed", "perf-infer", "perf-train"),
        *("rule", "shape", "dtype"),
    }


def test_the_source_and_its_licence_are_named() -> None:
    content = json.loads(FILE.read_text())
    assert "ops-transformer" in content["source"]
    assert "no code copied" in content["notes"]["license"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.json", [CASE]),
        ("one.json", CASE),
        ("groups.json", {"files": {"few": [CASE]}, "source": "somewhere"}),
        ("lines.csv", "id,B,N1,S1,D,Dtype,layout_q,scale\none,2,4,8,64,fp16,BSND,\n"),
    ],
)
def test_forms(tmp_path: Path, name: str, content: object) -> None:
    (case,) = read_cases(write(tmp_path, name, content))
    assert isinstance(case, AttentionCase)
    assert (case.id, case.batch_size, case.head_dim, case.scale) == ("one", 2, 64, None)
    assert case.group == ("few" if name == "groups.json" else "")


def test_cells_of_csv_are_json_where_they_parse_as_it(tmp_path: Path) -> None:
    text = (
        "id,N1,D,Dtype,layout_q,cu_seqlens_q,q_range,nc_kv_dims,return_softmax_lse\n"
        '7,1,64,bf16,TND,"[0, 3, 9]","[-5, 5.5]",0,true\n'
    )
    (case,) = read_cases(write(tmp_path, "a.csv", text))
    assert isinstance(case, AttentionCase)
    assert case.id == "7"
    assert case.cu_seqlens_q == [0, 3, 9]
    assert case.q_range == (-5.0, 5.5)
    assert (case.nc_kv_dims, case.return_softmax_lse) == (0, True)


def test_rule_rows_of_csv(tmp_path: Path) -> None:
    text = (
        "case_name,expectResult,q_shape,q_dtype,k_shape,v_shape,layout_q,mask_mode\n"
        "first,SUCCESS,2 128 8 128,FLOAT16,2 256 2 128,2 256 2 128,BSND,0\n"
    )
    (case,) = read_cases(write(tmp_path, "a.csv", text))
    assert isinstance(case, RuleCase)
    assert case.id == "first"
    assert case.succeeds
    assert case.cells["q_shape"] == "2 128 8 128"


def test_cases_without_a_name_are_numbered(tmp_path: Path) -> None:
    nameless = {key: value for key, value in CASE.items() if key != "id"}
    cases = read_cases(write(tmp_path, "mine.json", [nameless, nameless]))
    assert [case.id for case in cases] == ["mine-0", "mine-1"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", "", (".json or .csv", "a.txt")),
        ("a.json", "{", ("a.json", "JSON")),
        ("a.json", 3, ("list of cases", "int")),
        ("a.json", [], ("one case at least",)),
        ("a.json", {"files": [1]}, ("`files`", "names")),
        ("a.json", ["x"], ("a-0", "object", "str")),
        ("a.json", [CASE, CASE], ("'one' twice",)),
        ("a.json", [{**CASE, "bogus": 1}], ("case one", "bogus")),
        ("a.json", [{**CASE, "D": "64"}], ("case one", "D", "int")),
        ("a.json", [{**CASE, "Dtype": "int8"}], ("case one", "Dtype", "int8")),
        ("a.json", [{**CASE, "ours": {"error": "KeyError"}}], ("case one", "KeyError")),
        ("a.json", [{"id": "r", "expectResult": "FAIL", "shape": 1}], ("case r", "'shape'")),
        ("a.csv", "", ("column names",)),
        ("a.csv", "id,B\none,2,3\n", ("more in line 2",)),
    ],
)
def test_other_forms_are_refused(
    tmp_path: Path, name: str, content: object, says: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_cases(write(tmp_path, name, content))
    for part in says:
        assert part in str(caught.value)


def test_selection_by_id_and_group() -> None:
    found = select_cases(CASES, ["rule-s003", "strided", "infer-s000"])
    assert [case.id for case in found][:2] == ["strided-s000", "strided-s001"]
    assert [case.id for case in found][-2:] == ["infer-s000", "rule-s003"]
    assert len(found) == 14


def test_an_unknown_id_names_similar_ones() -> None:
    with pytest.raises(ValueError, match=r"`--id` .* 'infer-s99'; similar: .*infer-s009"):
        select_cases(CASES, ["infer-s99"])


def test_changes_replace_fields_and_cells() -> None:
    case = parse_case({**CASE, "ours": {"changes": {"S1": 16, "N2": 2}}})
    changed = with_changes(case)
    assert isinstance(changed, AttentionCase)
    assert (changed.seqlen_q, changed.num_heads_kv, changed.num_heads_q) == (16, 2, 4)
    row = parse_case(
        {
            "expectResult": "FAIL",
            "q_shape": "1 2 3 4",
            "ours": {"changes": {"q_shape": "2 2 3 4", "layout_out": None}},
        }
    )
    changed = with_changes(row)
    assert isinstance(changed, RuleCase)
    assert changed.cells == {"q_shape": "2 2 3 4", "layout_out": None}


@pytest.mark.parametrize(
    "row",
    [
        {**CASE, "ours": {"changes": {"bogus": 1}}},
        {"expectResult": "FAIL", "ours": {"changes": {"bogus": 1}}},
    ],
)
def test_a_change_of_nothing_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bogus"):
        with_changes(parse_case(row))
