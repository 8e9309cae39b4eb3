"""What a launch on an NPU or a GPU passes on, without either."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from fa_triton import launch
from fa_triton.compile.options import launch_options
from fa_triton.device import DeviceInfo
from fa_triton.targets import target

A5 = DeviceInfo("npu", "Ascend950PR", "Ascend950PR_9589", 32, 64)
A2 = DeviceInfo("npu", "Ascend910B3", "Ascend910B3", 20, 40)


class Kernel:
    """Stands for a compiled kernel and records its launches."""

    arg_names = ("X", "n", "BLOCK")
    __name__ = "kernel"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.calls.append((grid, args, kwargs))


def run(device: str, grid: Any, **kwargs: Any) -> list[Any]:
    kernel = Kernel()
    x = torch.zeros(1)
    runner = launch.Runner(kernel)
    runner._launch_on_device(grid, (x, np.int64(5)), kwargs, torch.device(device))
    return [(grid, args[1:], kwargs) for grid, args, kwargs in kernel.calls]


def test_options_of_the_other_devices_are_dropped() -> None:
    options = {"BLOCK": 64, "num_warps": 4, "multibuffer": False, "maxnreg": 64}
    expected = {"BLOCK": 64, "num_warps": 4, "maxnreg": 64}
    assert run("cuda", 3, **options) == [((3,), (5,), expected)]


def test_python_integers_reach_triton() -> None:
    ((_, args, _),) = run("cuda", (1,))
    assert type(args[0]) is int


def test_empty_grid_launches_nothing() -> None:
    assert run("cuda", 0) == []
    assert run("cuda", (4, 0)) == []


def test_ascend_950_gets_its_fix_and_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "device_info", lambda _: A5)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/folder")
    for device in ("cpu", "cuda"):
        options = launch._ascend_options(torch.device(device))
        assert options == launch_options(target("A5"))
    assert os.environ["TRITON_CACHE_DIR"] == "/folder/fa_triton_mix_mode"


def test_other_ascend_devices_need_no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "device_info", lambda _: A2)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/folder")
    assert launch._ascend_options(torch.device("cpu")) == launch_options(target("A2"))
    assert os.environ["TRITON_CACHE_DIR"] == "/folder"
