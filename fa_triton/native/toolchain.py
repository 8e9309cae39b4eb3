"""Versions and executables the native CPU path relies on.

Three LLVM versions exchange text here (triton-adapter-opt, bishengir-opt, llvmlite), so the
packages are pinned and anything else is refused before it can miscompile.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from fa_triton.native.cache import cache_directory

TRITON_ASCEND = "3.2.0"
ASCENDNPU_IR = "1.2.0"
LLVMLITE_FROM = (0, 47)
LLVMLITE_BELOW = (0, 51)

INSTALL = "pip install 'fa_triton[cpu]'"


@dataclass(frozen=True)
class Toolchain:
    """The checked toolchain: package versions and the MLIR optimiser."""

    triton_ascend: str
    ascendnpu_ir: str
    llvmlite: str
    bishengir_opt: Path


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _llvmlite_accepted(version: str) -> bool:
    parts = tuple(int(part) for part in version.split(".")[:2])
    return LLVMLITE_FROM <= parts < LLVMLITE_BELOW


def version_problems() -> list[str]:
    """Say what is missing or has the wrong version, one sentence per package."""
    llvmlite_range = f">={'.'.join(map(str, LLVMLITE_FROM))},<{'.'.join(map(str, LLVMLITE_BELOW))}"
    problems = []
    for package, accepted, expected in (
        ("triton-ascend", lambda v: v == TRITON_ASCEND, f"=={TRITON_ASCEND}"),
        ("ascendnpu-ir", lambda v: v == ASCENDNPU_IR, f"=={ASCENDNPU_IR}"),
        ("llvmlite", _llvmlite_accepted, llvmlite_range),
        ("pybind11", lambda _: True, ""),
    ):
        version = _installed(package)
        if version is None:
            problems.append(f"`{package}` must be {expected or 'installed'}, got none")
        elif not accepted(version):
            problems.append(f"`{package}` must be {expected}, got {version}")
    return problems


def runnable(executable: Path) -> Path:
    """Return a path of ``executable`` that may be run; wheels can lose the run bit.

    Args:
        executable: Binary inside an installed package.

    Returns:
        The same path, or that of a runnable copy in the cache directory.
    """
    if os.access(executable, os.X_OK):
        return executable
    try:
        executable.chmod(executable.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError:
        size = executable.stat().st_size
        copy = cache_directory() / "bin" / f"{executable.name}-{size}"
        if not (copy.exists() and copy.stat().st_size == size):
            copy.parent.mkdir(parents=True, exist_ok=True)
            partial = copy.with_name(f"{copy.name}.{os.getpid()}")
            shutil.copyfile(executable, partial)
            partial.chmod(0o755)
            partial.replace(copy)
        return copy
    return executable


def _package_directory(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"`{package}` must be importable for the native CPU path: {INSTALL}")
    return Path(next(iter(spec.submodule_search_locations)))


@functools.lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """Check the toolchain once per process.

    Raises:
        RuntimeError: A package is missing, has another version, or lost its executable.
    """
    problems = version_problems()
    if problems:
        raise RuntimeError(f"native CPU path: {'; '.join(problems)}. Install it with {INSTALL}")
    if importlib.util.find_spec("triton.backends.ascend") is None:
        raise RuntimeError(
            "native CPU path: `triton` must be triton-ascend, got another distribution in the "
            f"same folder; uninstall `triton` and `triton-ascend`, then {INSTALL}"
        )
    opt = _package_directory("ascendnpuir") / "bin" / "bishengir-opt"
    if not opt.exists():
        raise RuntimeError(f"native CPU path: `ascendnpu-ir` must hold {opt.name}, got none")
    return Toolchain(
        triton_ascend=TRITON_ASCEND,
        ascendnpu_ir=ASCENDNPU_IR,
        llvmlite=_installed("llvmlite") or "",
        bishengir_opt=opt,
    )


@functools.lru_cache(maxsize=1)
def bishengir_opt() -> Path:
    """Return a runnable bishengir-opt."""
    return runnable(toolchain().bishengir_opt)


@functools.lru_cache(maxsize=1)
def triton_adapter_opt() -> Path:
    """Return the path triton-ascend will run, made runnable.

    Raises:
        RuntimeError: It lacks the run bit and this user may not set it.
    """
    path = _package_directory("triton") / "backends" / "ascend" / "triton-adapter-opt"
    if runnable(path) != path:
        raise RuntimeError(f"native CPU path: {path} must be executable, got no run bit: chmod +x")
    return path
