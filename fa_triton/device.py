"""The only place that names npu, cuda and cpu: what a device is and how many cores it has."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from typing import Any, Literal

import torch

CPU_MODE_VARIABLE = "FA_TRITON_CPU"

DeviceKind = Literal["npu", "cuda", "cpu"]
CpuMode = Literal["native", "interpreter", "reference"]
_CPU_MODES: tuple[CpuMode, ...] = ("native", "interpreter", "reference")


@dataclass(frozen=True)
class DeviceInfo:
    """A device as the launchers see it.

    Attributes:
        kind: ``npu``, ``cuda`` or ``cpu``.
        name: Its name for people.
        target: Architecture kernels are compiled for, for instance ``Ascend910B3``.
        num_aic: Cube cores; streaming multiprocessors on CUDA, threads on the CPU.
        num_aiv: Vector cores, two per cube core.
    """

    kind: DeviceKind
    name: str
    target: str
    num_aic: int
    num_aiv: int


def cpu_mode() -> CpuMode:
    """How kernels run on CPU tensors: ``FA_TRITON_CPU``, ``native`` by default.

    Raises:
        ValueError: The variable has another value than native, interpreter or reference.
    """
    chosen = os.environ.get(CPU_MODE_VARIABLE, "native")
    for mode in _CPU_MODES:
        if chosen == mode:
            return mode
    raise ValueError(
        f"`{CPU_MODE_VARIABLE}` must be native, interpreter or reference, got {chosen!r}"
    )


def device_info(device: torch.device) -> DeviceInfo:
    """Describe a device.

    Args:
        device: An npu, cuda or cpu device; no index means the current one.

    Raises:
        NotImplementedError: Another kind of device.
        RuntimeError: The device's library does not say what is needed.
    """
    if device.type == "cpu":
        return _cpu(torch.get_num_threads())
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return _cuda(index)
    if device.type == "npu":
        npu = _npu_module()
        return _npu(npu.current_device() if device.index is None else device.index)
    raise NotImplementedError(f"`device` must be npu, cuda or cpu, got {device.type}")


@functools.cache
def _cpu(threads: int) -> DeviceInfo:
    return DeviceInfo(
        "cpu", platform.processor() or platform.machine(), "cpu", threads, 2 * threads
    )


@functools.cache
def _cuda(index: int) -> DeviceInfo:
    properties = torch.cuda.get_device_properties(index)
    cores = properties.multi_processor_count
    target = f"sm_{properties.major}{properties.minor}"
    return DeviceInfo("cuda", properties.name, target, cores, 2 * cores)


def _npu_module() -> Any:
    npu = getattr(torch, "npu", None)
    if npu is None:
        raise RuntimeError("`torch_npu` must be imported for npu tensors, got no torch.npu")
    return npu


@functools.cache
def _npu(index: int) -> DeviceInfo:
    # triton-ascend asks CANN itself; torch_npu's properties lack the cores in older versions.
    from triton.runtime import driver

    driver_now: Any = driver.active
    utils = driver_now.utils
    properties = utils.get_device_properties(index)
    cubes = int(properties["num_aicore"])
    vectors = int(properties.get("num_vectorcore", 2 * cubes))
    name = str(_npu_module().get_device_name(index))
    return DeviceInfo("npu", name, str(utils.get_arch()), cubes, vectors)
