"""From a compiled kernel and the arguments of a launch to the instruction streams of its cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf.model import flow_operations, memory_operations, scalar_operations, sync_operations
from perf.model.core import Builder, Core, Position
from perf.model.library_calls import call_builder
from perf.model.memref import DYNAMIC, MemRef
from perf.model.mlir import Function, Module
from perf.model.stream import Event
from perf.model.transfer_calls import WORKSPACE

# arguments before those of the kernel: synchronisation base, lock, workspace; and the grid behind
_HIDDEN = 3
_GRID = 3
VECTOR_CORES = 2

_BUILDERS: dict[str, Builder] = {
    **scalar_operations.BUILDERS,
    **memory_operations.BUILDERS,
    **flow_operations.BUILDERS,
    **sync_operations.BUILDERS,
}


@dataclass(frozen=True)
class Launch:
    """Arguments of a launch.

    Attributes:
        names: Run-time arguments of the kernel in order.
        scalars: Values of those that are numbers.
        contents: Values of integer tensors, flat; others stay unknown.
        programs: Size of the grid.
    """

    names: Sequence[str]
    scalars: Mapping[str, int | float]
    contents: Mapping[str, Sequence[int]]
    programs: int = 1


@dataclass(frozen=True)
class Streams:
    """What the cores of one program issue.

    Attributes:
        cube: The cube core; None in a kernel without matrix products.
        vectors: Its two vector cores, or the only one.
    """

    cube: list[Event] | None
    vectors: list[list[Event]]


def execute(module: Module, launch: Launch, block: int = 0) -> Streams:
    """Execute one program of a launch on its cores.

    Args:
        module: The compiled kernel.
        launch: Its arguments.
        block: Number of the program.

    Raises:
        UnknownOperationError: The model has no rule for something in the kernel.
        ValueError: The arguments do not fit the kernel.
    """
    cube = _named(module, "_mix_aic")
    if cube is not None:
        vector = _named(module, "_mix_aiv")
        if vector is None:
            raise ValueError("`module` must have vector cores beside its cube core, got none")
        return Streams(
            _run(module, cube, launch, block, 0),
            [_run(module, vector, launch, block, core) for core in range(VECTOR_CORES)],
        )
    entry = next((f for f in module.functions.values() if "hacc.entry" in f.header), None)
    if entry is None:
        raise ValueError("`module` must have a kernel, got none")
    stream = _run(module, entry, launch, block, 0)
    if "func_core_type<AIC>" in entry.header:
        return Streams(stream, [])
    return Streams(None, [stream])


def _named(module: Module, end: str) -> Function | None:
    return next((f for name, f in module.functions.items() if name.endswith(end)), None)


def _run(
    module: Module, function: Function, launch: Launch, block: int, sub_block: int
) -> list[Event]:
    builders = dict(_BUILDERS)
    builders["func.call"] = builders["call"] = call_builder(_BUILDERS)
    position = Position(block, sub_block, launch.programs)
    core = Core(module, builders, launch.contents, position)
    return core.run(function, _arguments(function, launch))


def _arguments(function: Function, launch: Launch) -> list[Any]:
    """Bind the launch to the function's arguments, in the order the compiler gives them."""
    names = ["synchronisation", "lock", WORKSPACE, *launch.names]
    if len(function.arguments) != len(names) + _GRID:
        raise ValueError(
            f"`names` must be the {len(function.arguments) - _HIDDEN - _GRID} run-time arguments "
            f"of {function.name}, got {len(launch.names)}"
        )
    values: list[Any] = []
    for name, kind in zip(names, function.types, strict=False):
        if kind.startswith("memref"):
            dtype = kind.rpartition("x")[2].partition(">")[0]
            values.append(MemRef((DYNAMIC,), dtype, origin=name))
        else:
            values.append(launch.scalars.get(name, 0))
    return [*values, launch.programs, 1, 1]
