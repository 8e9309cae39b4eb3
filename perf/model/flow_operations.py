"""Control flow: ``scf`` loops and conditions, branches, returns."""

from __future__ import annotations

import re
from typing import Any

from perf.model.core import Builder, Core, Handler, Leave
from perf.model.mlir import Module, Operation
from perf.model.scalar_operations import VALUE, operands

_FOR = re.compile(r"scf\.for (%[\w#-]+) = (%[\w#-]+) to (%[\w#-]+) step (%[\w#-]+)")
_CARRIED = re.compile(r"(%[\w#-]+) = (%[\w#-]+)")
_CARRIED_LIST = re.compile(r"(?:iter_args|scf\.while )\s*\((.*?)\)")
_TARGET = re.compile(r"(\^\w+)(?:\(([^:)]*)[^)]*\))?")
# increment, compare, branch
_LOOP_OPERATIONS = 3
_BRANCH_OPERATIONS = 2


def _for(operation: Operation, module: Module) -> Handler:
    head = _FOR.match(operation.text)
    if head is None:
        raise ValueError(f"`operation` must be a loop, got {operation.text[:80]!r}")
    index, low, high, step = head.groups()
    carried, body, results = _carried(operation), operation.regions[0], operation.results

    def handle(core: Core) -> None:
        at, end, by = (core.values[name] for name in (low, high, step))
        values = [core.values[start] for _, start in carried]
        while at < end:
            core.values[index] = at
            core.values.update(zip((name for name, _ in carried), values, strict=True))
            leave = core.execute(body)
            values = list(leave.values) if leave else []
            at += by
            core.count(_LOOP_OPERATIONS)
        core.values.update(zip(results, values, strict=True))

    return handle


def _while(operation: Operation, module: Module) -> Handler:
    carried, results = _carried(operation), operation.results
    before, after = operation.regions

    def handle(core: Core) -> None:
        values = tuple(core.values[start] for _, start in carried)
        while True:
            core.values.update(zip((name for name, _ in carried), values, strict=True))
            test = core.execute(before)
            if test is None or test.kind != "condition":
                raise ValueError("`operation` must test a condition in its first region")
            core.count(_BRANCH_OPERATIONS)
            if not test.holds:
                core.values.update(zip(results, test.values, strict=True))
                return
            core.values.update(zip(after[0].arguments, test.values, strict=True))
            leave = core.execute(after)
            values = leave.values if leave else ()

    return handle


def _carried(operation: Operation) -> list[tuple[str, str]]:
    """Values that a loop carries: name inside, name of the start value."""
    found = _CARRIED_LIST.search(operation.text)
    return _CARRIED.findall(found[1]) if found else []


def _if(operation: Operation, module: Module) -> Handler:
    condition, regions, results = operands(operation)[0], operation.regions, operation.results

    def handle(core: Core) -> None:
        core.count(_BRANCH_OPERATIONS)
        taken = 0 if core.values[condition] else 1
        if taken < len(regions):
            leave = core.execute(regions[taken])
            if leave is not None:
                core.values.update(zip(results, leave.values, strict=True))

    return handle


def _yield(operation: Operation, module: Module) -> Handler:
    taken = operands(operation)
    return lambda core: Leave("yield", _values(core, taken))


def _condition(operation: Operation, module: Module) -> Handler:
    test, *taken = operands(operation)
    return lambda core: Leave("condition", _values(core, taken), holds=bool(core.values[test]))


def _branch(operation: Operation, module: Module) -> Handler:
    label, taken = _target(operation.text)
    return lambda core: Leave("branch", _values(core, taken), label)


def _conditional_branch(operation: Operation, module: Module) -> Handler:
    test = operands(operation)[0]
    targets = [_target(text) for text in re.findall(r"\^\w+(?:\([^)]*\))?", operation.text)]
    (label, taken), (other_label, other_taken) = targets

    def handle(core: Core) -> Leave:
        core.count(_BRANCH_OPERATIONS)
        if core.values[test]:
            return Leave("branch", _values(core, taken), label)
        return Leave("branch", _values(core, other_taken), other_label)

    return handle


def _target(text: str) -> tuple[str, list[str]]:
    found = _TARGET.search(text)
    if found is None:
        raise ValueError(f"`text` must name a block, got {text[:80]!r}")
    return found[1], VALUE.findall(found[2] or "")


def _values(core: Core, names: list[str]) -> tuple[Any, ...]:
    return tuple(core.values[name] for name in names)


def _return(operation: Operation, module: Module) -> Handler:
    return lambda core: Leave("return")


BUILDERS: dict[str, Builder] = {
    "scf.for": _for,
    "scf.while": _while,
    "scf.if": _if,
    "scf.yield": _yield,
    "scf.condition": _condition,
    "cf.br": _branch,
    "cf.cond_br": _conditional_branch,
    "return": _return,
    "func.return": _return,
    "llvm.return": _return,
}
