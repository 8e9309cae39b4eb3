"""Launches that a call would make on an Ascend device, taken down instead of made.

The call gets CPU tensors and believes that they lie on the device: it validates, plans and chooses
tiles as there. What its kernels would compute stays uninitialised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from fa_triton import device as devices
from fa_triton.attention.prepared import prepare, prepare_for_table
from fa_triton.delta_rule.prepared import prepare_chunks
from fa_triton.device import DeviceInfo
from fa_triton.launch import Runner
from fa_triton.targets import Target
from perf.model.interpreter import Launch

# of what calls decide for a device
_CACHES = (prepare, prepare_for_table, prepare_chunks)


@dataclass(frozen=True)
class RecordedLaunch:
    """One launch.

    Attributes:
        kernel: Name of the kernel.
        key: Key of its form, which ``fa_triton.variants`` knows.
        programs: Size of the grid.
        arguments: By name.
    """

    kernel: str
    key: str
    programs: int
    arguments: Mapping[str, Any]

    def launch(self, names: tuple[str, ...], **contents: torch.Tensor) -> Launch:
        """Arguments as the interpreter takes them.

        Args:
            names: Run-time arguments of the compiled form, in order.
            **contents: Integer tensors whose values the call's own kernels would have computed.
        """
        given = {name: contents.get(name, self.arguments[name]) for name in names}
        tensors = {n: value for n, value in given.items() if isinstance(value, torch.Tensor)}
        return Launch(
            names=names,
            scalars={n: v for n, v in given.items() if isinstance(v, int | float)},
            contents={
                name: value.flatten().tolist()
                for name, value in tensors.items()
                if not value.is_floating_point() and value.dtype != torch.int8
            },
            programs=self.programs,
        )


@contextmanager
def recorded(target: Target, cube_cores: int = 1) -> Iterator[list[RecordedLaunch]]:
    """Take launches down inside of the context.

    Args:
        target: The device that calls believe to run on.
        cube_cores: Cores that they plan for; 1 gives all work to one.
    """
    launches: list[RecordedLaunch] = []

    def take_down(runner: Runner, grid: Any, *args: Any, variant: str = "", **kwargs: Any) -> None:
        names = runner.kernel.arg_names
        programs = grid if isinstance(grid, int) else grid[0]
        bound = dict(zip(names, args, strict=False)) | kwargs
        launches.append(RecordedLaunch(runner.kernel.__name__, variant, programs, bound))

    info = DeviceInfo("npu", target.arch, target.arch, cube_cores, 2 * cube_cores)
    with (
        mock.patch.object(devices, "_cpu", return_value=info),
        mock.patch.object(Runner, "_launch", take_down),
    ):
        _forget()
        try:
            yield launches
        finally:
            _forget()


def _forget() -> None:
    for cache in _CACHES:
        cache.cache_clear()
