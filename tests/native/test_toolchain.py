"""Missing packages, other versions, binaries without run bit, undefined symbols."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from fa_triton.launch import runner
from fa_triton.native import toolchain
from fa_triton.native.cache import CACHE_VARIABLE
from fa_triton.native.elf import undefined_symbols
from fa_triton.native.errors import LoweringError, first_diagnostic
from fa_triton.native.object_code import compile_object, load_object
from fa_triton.native.passes import run_passes


@triton.jit
def nothing(X):
    tl.store(X, 1.0)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Package versions to pretend; None is not installed."""
    pretended: dict[str, str | None] = {}
    original = importlib.metadata.version

    def version(name: str) -> str:
        found = pretended.get(name, original(name) if name not in pretended else None)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    toolchain.toolchain.cache_clear()
    return pretended


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        ("triton-ascend", "3.2.2", "`triton-ascend` must be ==3.2.0, got 3.2.2"),
        ("ascendnpu-ir", "1.1.0", "`ascendnpu-ir` must be ==1.2.0, got 1.1.0"),
        ("llvmlite", "0.46.1", "`llvmlite` must be >=0.47,<0.51, got 0.46.1"),
        ("llvmlite", "0.51.0", "`llvmlite` must be >=0.47,<0.51, got 0.51.0"),
        ("pybind11", None, "`pybind11` must be installed, got none"),
        ("ascendnpu-ir", None, "`ascendnpu-ir` must be ==1.2.0, got none"),
    ],
)
def test_other_versions_are_refused(
    versions: dict[str, str | None], package: str, version: str | None, message: str
) -> None:
    versions[package] = version
    with pytest.raises(RuntimeError) as caught:
        runner(nothing)[1](torch.zeros(1))
    assert message in str(caught.value)
    assert "pip install 'fa_triton[cpu]'" in str(caught.value)


def test_the_installed_versions_are_accepted(versions: dict[str, str | None]) -> None:
    assert versions == {}
    assert toolchain.version_problems() == []
    assert toolchain.bishengir_opt().exists()


def test_run_bit_is_restored(tmp_path: Path) -> None:
    binary = tmp_path / "tool"
    binary.write_text("#!/bin/sh\necho ran\n")
    binary.chmod(0o644)
    assert toolchain.runnable(binary) == binary
    assert os.access(binary, os.X_OK)


def test_a_copy_runs_where_the_bit_cannot_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    binary = tmp_path / "tool"
    binary.write_text("#!/bin/sh\necho ran\n")
    binary.chmod(0o644)

    original = Path.chmod

    def chmod(path: Path, mode: int) -> None:
        if path == binary:
            raise PermissionError
        original(path, mode)

    monkeypatch.setattr(Path, "chmod", chmod)
    copy = toolchain.runnable(binary)
    assert copy != binary
    assert copy.read_text() == binary.read_text()
    assert os.access(copy, os.X_OK)
    assert toolchain.runnable(binary) == copy


def test_pass_failures_carry_diagnostic_and_ir() -> None:
    with pytest.raises(LoweringError) as caught:
        run_passes("module { nonsense }", ("--canonicalize",))
    assert "error:" in caught.value.diagnostic
    assert caught.value.ir == "module { nonsense }"


@pytest.mark.parametrize(
    ("output", "first"),
    [
        ("note: a\nk.mlir:1:2: error: b\nerror: c", "k.mlir:1:2: error: b"),
        ("x.cpp:1: Assertion `a' failed.\nstack", "x.cpp:1: Assertion `a' failed."),
        ("\n\nsomething", "something"),
        ("", "no diagnostic"),
    ],
)
def test_first_diagnostic(output: str, first: str) -> None:
    assert first_diagnostic(output) == first


MISSING = """
declare float @not_there_at_all(float)
define float @f(float %x) {
  %y = call float @not_there_at_all(float %x)
  ret float %y
}
"""
LIBM = MISSING.replace("not_there_at_all", "tanhf")


def test_undefined_symbols_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="`not_there_at_all` has no native CPU"):
        compile_object(MISSING)


def test_libm_symbols_are_found() -> None:
    code = compile_object(LIBM)
    assert undefined_symbols(code) == ["tanhf"]
    assert load_object(code, "f").address != 0


def test_only_elf_objects_are_read() -> None:
    with pytest.raises(ValueError, match="`code` must be a 64-bit little-endian ELF object"):
        undefined_symbols(b"MZ" + b"\0" * 100)
