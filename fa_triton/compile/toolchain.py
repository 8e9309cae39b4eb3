"""The Ascend compilers that ship as a Python package, and the stand-in for their last step."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import tempfile
from pathlib import Path

from fa_triton.native.cache import cache_directory
from fa_triton.native.toolchain import ASCENDNPU_IR, INSTALL, TRITON_ASCEND, runnable
from fa_triton.targets import Target

# `hivmc`, which assembles the device binary, is part of CANN and not of the package. A compile
# ends before it: the stand-in only writes down that it was called. Without one the compiler
# reports failure whatever happened, and the A5 compiler repeats the whole pipeline five times.
_STAND_IN = """#!/bin/sh
case "$1" in --version) exit 0 ;; esac
printf '%s\\n' "$0" >> "$FA_TRITON_LAST_STEP"
"""
_STAND_IN_NAMES = ("hivmc", "hivmc-a5")


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_ascend_backend() -> bool:
    try:
        return importlib.util.find_spec("triton.backends.ascend") is not None
    except ImportError:
        return False


def version_problems() -> list[str]:
    """Say what the compile check misses, one sentence per package."""
    problems = []
    for package, expected in (("triton-ascend", TRITON_ASCEND), ("ascendnpu-ir", ASCENDNPU_IR)):
        version = installed_version(package)
        if version is None:
            problems.append(f"`{package}` must be =={expected}, got none")
        elif version != expected:
            problems.append(f"`{package}` must be =={expected}, got {version}")
    if installed_version("pybind11") is None:
        problems.append("`pybind11` must be installed, got none")
    if not problems and not _has_ascend_backend():
        problems.append("`triton` must be triton-ascend, got another package in the same folder")
    return problems


@functools.lru_cache(maxsize=1)
def require() -> dict[str, str]:
    """Check the packages once per process.

    Returns:
        Versions by package, part of every cache key and compile record.

    Raises:
        RuntimeError: A package is missing or has another version.
    """
    problems = version_problems()
    if problems:
        raise RuntimeError(f"Ascend compile check: {'; '.join(problems)}. Install: {INSTALL}")
    return {"triton-ascend": TRITON_ASCEND, "ascendnpu-ir": ASCENDNPU_IR}


@functools.lru_cache(maxsize=2)
def _compiler(name: str) -> Path:
    package = importlib.util.find_spec("ascendnpuir")
    folders = (package and package.submodule_search_locations) or []
    path = Path(next(iter(folders), "")) / "bin" / name
    if not path.exists():
        raise RuntimeError(f"Ascend compile check: `ascendnpu-ir` must hold {name}, got none")
    return runnable(path)


def compiler(target: Target) -> Path:
    """Return the compiler of a target, made runnable."""
    require()
    return _compiler("bishengir-compile-a5" if target.is_a5 else "bishengir-compile")


@functools.lru_cache(maxsize=1)
def last_step_directory() -> Path:
    """Write the stand-ins for ``hivmc`` and return their directory, to put first on ``PATH``."""
    directory = cache_directory() / "compile" / "last-step"
    directory.mkdir(parents=True, exist_ok=True)
    for name in _STAND_IN_NAMES:
        path = directory / name
        if path.exists() and path.read_text() == _STAND_IN and os.access(path, os.X_OK):
            continue
        handle, partial = tempfile.mkstemp(dir=directory, prefix=".partial-")
        with os.fdopen(handle, "w") as file:
            file.write(_STAND_IN)
        Path(partial).chmod(0o755)
        os.replace(partial, path)
    return directory
