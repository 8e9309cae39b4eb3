"""Vector functions of an Ascend 950: their loops are in the file, down to single registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perf.model.core import Builder, Core, Handler
from perf.model.mlir import Function, Module, Operation
from perf.model.stream import Registers

# masks, values without work
_FREE = ("pge", "plt", "pset", "init", "pnot", "pand", "por", "punpack", "ppack", "movemask")
_SPECIAL = ("vexp", "vdiv", "vln", "vsqrt", "vrsqrt", "vrec")
_REDUCTIONS = ("vcmax", "vcadd", "vcmin", "vcgmax", "vcgadd")


class _RegisterCore(Core):
    """Counts instructions on registers instead of issuing events."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.registers: Counter[str] = Counter()


def registers(
    function: Function, arguments: Sequence[Any], caller: Core, builders: Mapping[str, Builder]
) -> Registers:
    """Execute a vector function and count its instructions."""
    core = _RegisterCore(caller.module, {**builders, **_BUILDERS}, {}, caller.position)
    core.run(function, arguments)
    found = core.registers
    return Registers(
        function.name,
        loads=found["loads"],
        stores=found["stores"],
        simple=found["simple"],
        special=found["special"],
        reductions=found["reductions"],
    )


def _intrinsic(operation: Operation, module: Module) -> Handler:
    name = operation.name.partition("intr.hivm.")[2]
    kind = _kind(name)
    results = operation.results

    def handle(core: Core) -> None:
        core.values.update(dict.fromkeys(results, 0))
        if kind and isinstance(core, _RegisterCore):
            core.registers[kind] += 1

    return handle


def _kind(name: str) -> str:
    if name.startswith(_FREE):
        return ""
    if name.startswith("vld"):
        # the first load of an unaligned pair only fetches a remainder
        return "" if name.startswith("vldas") else "loads"
    if name.startswith(("vst", "vsst")):
        return "stores"
    if name.startswith(_SPECIAL):
        return "special"
    return "reductions" if name.startswith(_REDUCTIONS) else "simple"


def _no_instruction(operation: Operation, module: Module) -> Handler:
    results = operation.results
    return lambda core: core.values.update(dict.fromkeys(results, 0))


_BUILDERS: dict[str, Builder] = {
    "hivm_regbaseintrins.*": _intrinsic,
    "vector.*": _no_instruction,
    **dict.fromkeys(
        (
            "llvm.extractvalue",
            "llvm.insertvalue",
            "llvm.getelementptr",
            "llvm.mlir.undef",
            "llvm.mlir.poison",
            "llvm.bitcast",
        ),
        _no_instruction,
    ),
}
