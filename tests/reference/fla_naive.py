"""Flash-linear-attention's plain torch form of Kimi Delta Attention, as an independent peer.

The file is loaded by its path: importing the package ``fla`` would ask for a GPU's triton.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch

PACKAGE = "fla-core"
FILE = "fla/ops/kda/naive.py"


@functools.cache
def _path() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(FILE)))
    return path if path.exists() else None


@functools.cache
def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fla_naive_kda", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fla_naive() -> ModuleType:
    """Load ``fla.ops.kda.naive``, or skip the test."""
    path = _path()
    if path is None:
        pytest.skip(f"needs {PACKAGE}, which has {FILE}")
    if importlib.util.find_spec("einops") is None:
        pytest.skip("needs einops")
    return _load(path)


def with_locals(
    function: Callable[..., Any], **arguments: torch.Tensor | Any
) -> tuple[Any, dict[str, Any]]:
    """Call a function; its result and its local variables at its return."""
    found: dict[str, Any] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is function.__code__:
            found.update(frame.f_locals)

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        result = function(**arguments)
    finally:
        sys.setprofile(previous)
    return result, found


def fla_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of both functions from those of ``chunk_kda_fwd`` in BSND without options."""
    shared = ("q", "k", "v", "g", "beta", "scale", "initial_state")
    return {name: arguments.get(name) for name in shared} | {"output_final_state": True}
