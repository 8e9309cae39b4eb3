"""Read case files: JSON (a list, or an object whose ``files`` are named lists) or CSV."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fa_triton.cases.case import AttentionCase, Ours, RuleCase
from fa_triton.cases.incre_case import IncreCase
from fa_triton.cases.rule_call import check_columns

Case = AttentionCase | RuleCase | IncreCase
CaseT = TypeVar("CaseT", AttentionCase, RuleCase, IncreCase)

_SUGGESTIONS = 5
# Columns that only rule rows have.
_RULE_MARKS = frozenset({"expectResult", "q_dtype", "q_shape"})


def read_cases(path: Path) -> list[Case]:
    """Read every case of a file.

    Args:
        path: A ``.json`` or ``.csv`` file. A row of CSV is a case; cells are JSON where they parse
            as it (``[0, 64, 128]``), empty cells are absent.

    Raises:
        OSError: The file cannot be read.
        ValueError: It has another form, or a case in it has; names the case.
    """
    suffix = path.suffix.lower()
    if suffix not in (".json", ".csv"):
        raise ValueError(f"`FILE` must be a .json or .csv file, got {path.name}")
    text = path.read_text(encoding="utf-8-sig")
    groups = _csv_groups(text, path.stem) if suffix == ".csv" else _json_groups(text, path)
    cases = [
        parse_case(row, group, f"{group or path.stem}-{index}")
        for group, rows in groups.items()
        for index, row in enumerate(rows)
    ]
    if not cases:
        raise ValueError(f"`FILE` must hold one case at least, got none in {path.name}")
    _check_unique(cases)
    return cases


def parse_case(row: Any, group: str = "", default_id: str = "case") -> Case:
    """Turn one row into a case; a row without ``id`` gets the default one.

    Raises:
        ValueError: The row is no case; names it.
    """
    if not isinstance(row, dict):
        raise ValueError(f"case {default_id} must be an object, got {type(row).__name__}")
    row = dict(row)
    name = str(row.pop("id", None) or row.pop("case_name", None) or default_id)
    try:
        ours = msgspec.convert(row.pop("ours", {}), Ours)
        if not _RULE_MARKS.isdisjoint(row):
            return _rule(row, name, group, ours)
        fields = row | {"id": name, "group": group, "ours": ours}
        return msgspec.convert(fields, IncreCase if "operator" in row else AttentionCase)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"case {name}: {error}") from error


def select_cases(cases: Sequence[Case], ids: Iterable[str]) -> list[Case]:
    """Cases with these ids or of groups with these names, in the order of the file.

    Raises:
        ValueError: No case and no group has the id; names similar ones.
    """
    wanted = list(ids)
    known = {case.id for case in cases} | {case.group for case in cases if case.group}
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, known, _SUGGESTIONS, cutoff=0.4)
            hint = f"; similar: {', '.join(close)}" if close else ""
            raise ValueError(f"`--id` must name a case or a group of the file, got {name!r}{hint}")
    return [case for case in cases if case.id in wanted or case.group in wanted]


def with_changes(case: CaseT) -> CaseT:
    """Return the case with our changes applied.

    Raises:
        ValueError: A change does not fit the case.
    """
    changes = case.ours.changes
    if not changes:
        return case
    if isinstance(case, RuleCase):
        check_columns(changes)
        return msgspec.structs.replace(case, cells=case.cells | changes)
    fields = msgspec.to_builtins(case, builtin_types=(Ours,)) | changes
    return msgspec.convert(fields, type(case))


def _rule(row: dict[str, Any], name: str, group: str, ours: Ours) -> RuleCase:
    expect = str(row.pop("expectResult", "SUCCESS"))
    annotation = str(row.pop("case_annotation", None) or "")
    cells = {key: value for key, value in row.items() if value not in ("", None)}
    check_columns(cells)
    return RuleCase(
        id=name,
        group=group,
        expect=expect,
        annotation=annotation,
        cells=cells,
        ours=ours,
    )


def _json_groups(text: str, path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} must be JSON, got {error}") from error
    if isinstance(content, dict) and "files" in content:
        groups = content["files"]
        if not isinstance(groups, dict) or not all(isinstance(v, list) for v in groups.values()):
            raise ValueError(f"`files` in {path.name} must map names to lists of cases")
        return groups
    if isinstance(content, dict):
        return {"": [content]}
    if isinstance(content, list):
        return {"": content}
    raise ValueError(
        f"{path.name} must hold a list of cases, one case, or an object with `files`, "
        f"got {type(content).__name__}"
    )


def _csv_groups(text: str, stem: str) -> dict[str, list[Any]]:
    reader = csv.DictReader(text.splitlines())
    if not reader.fieldnames:
        raise ValueError(f"{stem}.csv must begin with a line of column names, got none")
    rows = []
    for line in reader:
        if None in line:
            raise ValueError(
                f"{stem}.csv must have a name for every column, got more in line {reader.line_num}"
            )
        rows.append({key: _cell(value) for key, value in line.items() if value not in ("", None)})
    return {"": rows}


def _cell(text: str) -> Any:
    """Read a cell as JSON where it is, so that lists and numbers come through."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _check_unique(cases: Sequence[Case]) -> None:
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise ValueError(f"every case must have its own id, got {case.id!r} twice")
        seen.add(case.id)
