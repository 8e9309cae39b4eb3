"""Calls: of library functions, which become work of a pipe, and of vector functions."""

from __future__ import annotations

import re
from typing import Any

from perf.model.core import Builder, Core, Handler, UnknownOperationError
from perf.model.cube_calls import product
from perf.model.memref import MemRef
from perf.model.mlir import Module, Operation
from perf.model.register_calls import registers
from perf.model.scalar_operations import VALUE
from perf.model.stream import Registers
from perf.model.transfer_calls import transfer
from perf.model.vector_calls import vector

_CALL = re.compile(r"@([\w$.]+)\((.*?)\)(?: \{.*?\})? :")


def call_builder(others: dict[str, Builder]) -> Builder:
    """Make the builder of calls.

    Args:
        others: Builders of everything else, which bodies of vector functions need.
    """
    counted: dict[tuple[str, tuple[object, ...]], Registers] = {}

    def build(operation: Operation, module: Module) -> Handler:
        found = _CALL.search(operation.text)
        if found is None:
            raise UnknownOperationError(f"no rule for {operation.text[:80]!r}")
        name, taken, results = found[1], VALUE.findall(found[2]), operation.results
        function = module.functions.get(name)

        def handle(core: Core) -> None:
            arguments = [core.values[value] for value in taken]
            core.count_call()
            core.values.update(dict.fromkeys(results, 0))
            if function is None:
                _library(core, name, arguments)
                return
            key = (name, tuple(_plain(value) for value in arguments))
            if key not in counted:
                counted[key] = registers(function, arguments, core, others)
            core.issue(counted[key])

        return handle

    return build


def _plain(value: Any) -> object:
    """What the loops of a vector function can depend on; places in memory are not among it."""
    return value.shape if isinstance(value, MemRef) else value


def _library(core: Core, name: str, arguments: list[Any]) -> None:
    if name.startswith("mma_"):
        for event in product(name, arguments):
            core.issue(event)
        return
    memories = [value for value in arguments if isinstance(value, MemRef)]
    moved = transfer(name, memories)
    if moved is not None:
        if moved.bytes:
            core.issue(moved)
        return
    work = vector(name, memories)
    if work is not None:
        core.issue(work)
