"""Stand-in for torch_npu on a machine without an NPU: names exist, and calling one is an error.

vllm-ascend can be imported on it, so that classes are compared and methods that touch no device
run. Nothing here computes anything.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch


class NotHere:
    """A name of torch_npu that exists, as far as an import can tell."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{self.name} was called, and there is no NPU")

    def __getattr__(self, name: str) -> NotHere:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotHere(f"{self.name}.{name}")

    def __or__(self, _: object) -> Any:
        # in annotations
        return Any


def _class(name: str) -> type:
    def refuse(self: object, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"{name} was made, and there is no NPU")

    return type(name, (), {"__init__": refuse})


class _Namespace(types.ModuleType):
    def __getattr__(self, name: str) -> NotHere:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotHere(f"{self.__name__}.{name}")


npu = _Namespace("torch_npu.npu")
for _name in ("Event", "ExternalEvent", "NPUGraph", "Stream"):
    setattr(npu, _name, _class(_name))
npu.is_available = lambda: False
npu.device_count = lambda: 0
# as torch_npu does, so that a device may be named
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", npu)
sys.modules["torch_npu.npu"] = npu


def __getattr__(name: str) -> NotHere:
    if name.startswith("__"):
        raise AttributeError(name)
    return NotHere(f"torch_npu.{name}")
