"""From the form of a kernel that a launch runs to the variant that the compile check takes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fa_triton.compile.variant import KernelVariant, Properties
from fa_triton.kernel_form import KernelForm

DEVICES = ("A2", "A3", "A5")


def declare(
    form: KernelForm,
    *,
    op: str,
    tile: str,
    optional: Iterable[str],
    argument_type: Callable[[str, KernelForm], str],
    properties: Mapping[str, Properties],
) -> KernelVariant:
    """Complete a form: signature, constants, where the function lies.

    Args:
        form: Names the kernel, which lies in a file of its name.
        op: Operator it belongs to.
        tile: Its tile, for people.
        optional: Tensors that a call may leave out; those that the form does not name are absent.
        argument_type: Type of a run-time argument by its name, as a launch specialises it.
        properties: What is expected, by target.
    """
    absent = [name for name in optional if name not in form.tensors]
    module = f"fa_triton.kernels.{form.kernel}"
    kernel = _kernel(module, form.kernel)
    compile_time = [p.name for p in kernel.params if p.is_constexpr]
    return KernelVariant(
        op=op,
        kernel=form.kernel,
        tile=tile,
        key=form.key,
        jit=f"{module}:{form.kernel}",
        signature={
            name: argument_type(name, form)
            for name in kernel.arg_names
            if name not in compile_time and name not in absent
        },
        constants={
            **dict.fromkeys(compile_time, False),
            **dict(form.constants),
            **dict.fromkeys(absent),
        },
        properties=properties,
    )


def devices_of(
    forms: Callable[[str], Iterable[KernelForm]],
) -> dict[KernelForm, tuple[str, ...]]:
    """Forms of all Ascend devices, each once, with the devices that use it."""
    found: dict[KernelForm, list[str]] = {}
    for device in DEVICES:
        for form in forms(device):
            devices = found.setdefault(form, [])
            if device not in devices:
                devices.append(device)
    return {form: tuple(devices) for form, devices in found.items()}


@functools.cache
def _kernel(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
