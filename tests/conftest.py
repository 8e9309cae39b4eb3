"""What every test shares: process isolation for native code, thread counts, skips by device."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

pytest_plugins = ["tests.isolation"]

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# Folders whose tests run compiled kernels: a fault there must end one test, not the run.
ISOLATED_FOLDERS = (
    "native",
    "flash_attn",
    "incre_flash_attention",
    "kda",
    "kda_layer",
    "torch_ops",
    "compat",
    "demo",
    "vllm_adapter",
)
ISOLATED_THREADS = 2


def _is_isolated(item: pytest.Item) -> bool:
    folder = item.path.relative_to(TESTS).parts[0]
    return folder in ISOLATED_FOLDERS or item.get_closest_marker("forked") is not None


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def pytest_configure() -> None:
    """Import the slow packages once, so that forked children find them, on one thread."""
    import torch

    # A child forked from a process whose OpenMP pool is up hangs in its first parallel region:
    # the parent stays single-threaded, isolated tests raise the count in the child.
    torch.set_num_threads(1)
    if _has_module("triton"):
        importlib.import_module("triton")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fork tests of compiled kernels and skip what this machine lacks."""
    import torch

    lacks_cuda = not torch.cuda.is_available()
    lacks_npu = not _has_module("torch_npu")
    lacks_vllm = not _has_module("vllm")
    lacks_compiler = not _has_module("ascendnpuir")
    conditions = {
        "cuda": (lacks_cuda, "needs an NVIDIA GPU"),
        "npu": (lacks_npu, "needs an Ascend NPU and torch_npu"),
        "vllm": (lacks_vllm, "needs vllm"),
        "compile": (lacks_compiler, "needs ascendnpu-ir"),
    }
    for item in items:
        if _is_isolated(item):
            item.add_marker(pytest.mark.forked)
        for marker, (lacking, reason) in conditions.items():
            if lacking and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> None:
    """Give torch several threads in isolated tests only."""
    import torch

    if _is_isolated(request.node):
        torch.set_num_threads(ISOLATED_THREADS)


@pytest.fixture
def nan_filled_memory() -> Iterator[None]:
    """Fill every new ``torch.empty`` with NaN (integers: the largest value)."""
    import torch

    # The public switch imports torch's compiler, 1.4 s, and does the same.
    torch._C._set_deterministic_algorithms(True)
    yield
    torch._C._set_deterministic_algorithms(False)


@pytest.fixture
def copies_of_fractals(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Copy fractals to rows before the attention, as A2 and A3 do.

    Returns:
        Filled by calls: of every copy, whether its pages got a block table of their own.
    """
    from fa_triton.attention import fractals, plans

    copies: list[bool] = []
    unfold = fractals.unfold

    def count(*args: Any) -> Any:
        rows = unfold(*args)
        copies.append(rows.sources is not None)
        return rows

    for module in (fractals, plans):
        monkeypatch.setattr(module, "loads_fractals", lambda _device: False)
    for name in ("attention.calls", "incremental_attention.fractals"):
        monkeypatch.setattr(f"fa_triton.{name}.unfold", count)
    return copies


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """Return the folder that holds pyproject.toml."""
    return ROOT
