"""``fa-triton case``: what it prints and writes, its exit code, its errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from fa_triton.cases import run as run_module
from fa_triton.cases.report import COLUMNS
from fa_triton.cli.case import Device
from fa_triton.cli.main import app
from tests.cases.library import FILE

SMALL: dict[str, Any] = {
    "id": "small",
    "B": 1,
    "N1": 2,
    "S1": 4,
    "S2": 40,
    "D": 64,
    "Dtype": "fp16",
    "layout_q": "BSND",
    "return_softmax_lse": True,
}
LARGE = SMALL | {"id": "large", "S2": 2**27, "return_softmax_lse": False}
WRONG = SMALL | {"id": "wrong", "mask_mode": 7}


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["case", *args])


def write(folder: Path, *cases: dict[str, Any]) -> str:
    path = folder / "cases.json"
    path.write_text(json.dumps(list(cases)))
    return str(path)


@pytest.mark.forked
def test_computes_judges_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    result = run(write(tmp_path, SMALL, LARGE), "--csv", str(out))
    assert result.exit_code == 0, result.output
    assert "2 passed, 0 failed" in result.output
    with out.open() as file:
        small, large = csv.DictReader(file)
    assert tuple(small) == COLUMNS
    assert (small["path"], small["verdict"]) == ("native", "pass")
    assert 0 < float(small["rms"]) <= float(small["rms_budget"])
    assert 0 <= float(small["lse_error"]) <= float(small["lse_budget"])
    assert (large["path"], large["verdict"], large["rms"]) == ("plan", "pass", "")
    assert float(large["gflop"]) == pytest.approx(274.9, rel=1e-3)


def test_a_failure_ends_with_exit_code_1_and_its_reason(tmp_path: Path) -> None:
    result = run(write(tmp_path, LARGE, WRONG))
    assert result.exit_code == 1
    assert "wrong: ValueError: `mask_mode` must be 0 (none), 3 (causal)" in result.output
    assert "1 passed, 1 failed" in result.output


def test_ids_and_groups_select() -> None:
    result = run(str(FILE), "--id", "shape", "--id", "rule-s013", "--max-gflop", "0")
    assert result.exit_code == 0, result.output
    assert "6 passed, 0 failed" in result.output


def test_an_unknown_id_is_one_line() -> None:
    result = run(str(FILE), "--id", "train-s99")
    assert isinstance(result.exception, ValueError)
    assert "similar: train-s0" in str(result.exception)


def test_the_list_names_every_case_without_running_one() -> None:
    result = run(str(FILE), "--id", "infer", "--list")
    lines = result.output.splitlines()
    assert len(lines) == 16
    assert lines[0] == "infer-s000  BNSD bf16 B1 N5 S1/2048 D128"


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none.json"))
    assert result.exit_code == 2
    assert "does not exist" in " ".join(result.output.split())


@pytest.mark.parametrize("name", [Device.npu, Device.cuda])
def test_a_device_that_is_not_there_is_named(
    tmp_path: Path, name: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(__import__("sys").modules, "torch_npu", None)
    result = run(write(tmp_path, LARGE), "--device", name.value)
    assert isinstance(result.exception, RuntimeError)
    message = str(result.exception)
    assert f"`--device {name.value}` needs" in message
    assert "--device cpu" in message


def test_the_file_holds_what_was_done_when_the_run_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = run_module.run_case

    def stops(case: Any, *args: Any) -> Any:
        if case.id == "wrong":
            raise KeyboardInterrupt
        return honest(case, *args)

    monkeypatch.setattr(run_module, "run_case", stops)
    out = tmp_path / "out.csv"
    result = run(write(tmp_path, LARGE, WRONG), "--csv", str(out))
    assert result.exit_code != 0
    with out.open() as file:
        assert [line["id"] for line in csv.DictReader(file)] == ["large"]
