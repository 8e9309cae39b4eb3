"""Flags, barriers, hand-overs between cores, and which program a core is."""

from __future__ import annotations

import re
from typing import Any

from perf.model.core import Builder, Core, Handler, UnknownOperationError
from perf.model.mlir import Module, Operation
from perf.model.stream import Barrier, CoreSync, Flag

_FLAG = re.compile(r"\[<PIPE_(\w+)>, <PIPE_(\w+)>, (?:<EVENT_ID(\d+)>|(%[\w#-]+))\]")
_PIPE = re.compile(r"<PIPE_(\w+)>")
_CORE_SYNC = re.compile(r"\[<\w+>, <PIPE_(\w+)>, <PIPE_(\w+)>\] flag = (\S+)")


def _match(pattern: re.Pattern[str], operation: Operation) -> tuple[Any, ...]:
    found = pattern.search(operation.text)
    if found is None:
        raise UnknownOperationError(f"no rule for {operation.text[:80]!r}")
    return found.groups()


def _flag(operation: Operation, module: Module) -> Handler:
    source, target, number, name = _match(_FLAG, operation)
    is_set = operation.name.endswith("set_flag")

    def handle(core: Core) -> None:
        event = number if number is not None else core.values[name]
        core.issue(Flag(is_set, source, target, str(event)))

    return handle


def _barrier(operation: Operation, module: Module) -> Handler:
    event = Barrier(_match(_PIPE, operation)[0])
    return lambda core: core.issue(event)


def _core_sync(operation: Operation, module: Module) -> Handler:
    source, target, flag = _match(_CORE_SYNC, operation)
    is_set = operation.name.endswith("block_set")

    def handle(core: Core) -> None:
        number = core.values[flag] if flag.startswith("%") else int(flag)
        core.issue(CoreSync(is_set, source, target, number))

    return handle


def _position(field: str) -> Builder:
    def build(operation: Operation, module: Module) -> Handler:
        result = operation.results[0]

        def handle(core: Core) -> None:
            core.values[result] = getattr(core.position, field)
            core.count(1)

        return handle

    return build


def _nothing(operation: Operation, module: Module) -> Handler:
    return lambda core: core.count(1)


BUILDERS: dict[str, Builder] = {
    "hivm.hir.set_flag": _flag,
    "hivm.hir.wait_flag": _flag,
    "hivm.hir.pipe_barrier": _barrier,
    "hivm.hir.sync_block_set": _core_sync,
    "hivm.hir.sync_block_wait": _core_sync,
    "hivm.hir.get_block_idx": _position("block"),
    "hivm.hir.get_sub_block_idx": _position("sub_block"),
    "hivm.hir.get_block_num": _position("num_blocks"),
    **dict.fromkeys(
        (
            "hivm.hir.set_ffts_base_addr",
            "hivm.hir.set_mask_norm",
            "hivm.hir.set_ctrl",
            "annotation.mark",
            "memref.assume_alignment",
        ),
        _nothing,
    ),
}
