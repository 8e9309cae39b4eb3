"""Operations on memrefs: where a part lies and how large it is, single elements."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perf.model.core import Builder, Core, Handler
from perf.model.memref import DYNAMIC, STACK, MemRef, read_type
from perf.model.mlir import Module, Operation
from perf.model.scalar_operations import VALUE, operands

_LISTS = re.compile(r"\[([^\]]*)\]")
_GROUP = re.compile(r"\[([\d, ]+)\]")
_NAMED_LIST = re.compile(r"(\w+): \[([^\]]*)\]")
_INDICES = re.compile(r"%[\w#-]+\[([^\]]*)\]")
# addresses of a part: about two instructions
_ADDRESS_OPERATIONS = 2

_Item = str | int


def _items(text: str) -> list[_Item]:
    """Numbers and names of values of a list."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return [part if part.startswith("%") else int(part) for part in parts]


def _read(core: Core, items: list[_Item]) -> list[int]:
    return [int(core.values[item]) if isinstance(item, str) else item for item in items]


def _result_type(operation: Operation) -> MemRef:
    return read_type(re.split(r" (?:to|into) ", operation.text)[-1])


def _pointer_cast(operation: Operation, module: Module) -> Handler:
    kind = read_type(operation.text.split(" : ")[-1])
    sizes = re.findall(r"\[([^\]]*)\]", operation.text.split(" : ")[0])
    dynamic = VALUE.findall(sizes[0]) if sizes else operands(operation)[1:]

    def make(core: Core) -> MemRef:
        left = iter(dynamic)
        shape = [core.values[next(left)] if n == DYNAMIC else n for n in kind.shape]
        return replace(kind, shape=tuple(shape))

    return _define(operation, make, cost=0)


def _same(operation: Operation, module: Module) -> Handler:
    source = operands(operation)[0]
    return _define(operation, lambda core: core.values[source], cost=0)


def _bitcast(operation: Operation, module: Module) -> Handler:
    source, kind = operands(operation)[0], _result_type(operation)
    return _define(operation, lambda core: replace(core.values[source], dtype=kind.dtype), cost=0)


def _reshape(operation: Operation, module: Module) -> Handler:
    source, kind = operands(operation)[0], _result_type(operation)

    def make(core: Core) -> MemRef:
        return replace(core.values[source].renamed(kind), strides=kind.strides)

    return _define(operation, make, cost=0)


def _collapse(operation: Operation, module: Module) -> Handler:
    """Neighbouring dimensions become one each, as ``[[0], [1, 2]]`` says; all may be dynamic."""
    source, kind = operands(operation)[0], _result_type(operation)
    groups = [
        [int(axis) for axis in group.split(",")]
        for group in _GROUP.findall(operation.text.split(" : ")[0])
    ]

    def make(core: Core) -> MemRef:
        whole: MemRef = core.values[source]
        shape = tuple(math.prod(whole.shape[axis] for axis in group) for group in groups)
        return replace(whole, shape=shape, strides=kind.strides)

    return _define(operation, make, cost=0)


def _view(operation: Operation, module: Module) -> Handler:
    """A typed part of the workspace, which is a memory of bytes."""
    source, kind = operands(operation)[0], _result_type(operation)
    return _define(
        operation, lambda core: replace(core.values[source].renamed(kind), offset=0), cost=0
    )


def _subview(operation: Operation, module: Module) -> Handler:
    source, kind = operands(operation)[0], _result_type(operation)
    lists = [_items(text) for text in _LISTS.findall(operation.text.split(" : ")[0])]
    offsets, sizes, steps = lists[:3]

    def make(core: Core) -> MemRef:
        whole: MemRef = core.values[source]
        at, shape, by = (_read(core, items) for items in (offsets, sizes, steps))
        strides = whole.dense_strides if whole.strides is None else whole.strides
        own = [stride * step for stride, step in zip(strides, by, strict=True)]
        offset = whole.offset + sum(a * s for a, s in zip(at, strides, strict=True))
        kept = _kept_dimensions(shape, len(kind.shape))
        return replace(
            whole,
            shape=tuple(shape[n] for n in kept),
            strides=tuple(own[n] for n in kept),
            offset=offset,
        )

    return _define(operation, make, _ADDRESS_OPERATIONS)


def _kept_dimensions(shape: list[int], rank: int) -> list[int]:
    """Dimensions left where a subview drops dimensions of size 1 to get ``rank``, first ones."""
    kept = list(range(len(shape)))
    for at in range(len(shape)):
        if len(kept) > rank and shape[at] == 1:
            kept.remove(at)
    return kept


def _reinterpret(operation: Operation, module: Module) -> Handler:
    source, kind = operands(operation)[0], _result_type(operation)
    lists = {name: _items(text) for name, text in _NAMED_LIST.findall(operation.text)}

    def make(core: Core) -> MemRef:
        whole: MemRef = core.values[source]
        (offset,) = _read(core, lists["offset"])
        return replace(
            whole,
            shape=tuple(_read(core, lists.get("sizes", []))),
            strides=tuple(_read(core, lists.get("strides", []))),
            offset=offset,
            dtype=kind.dtype,
        )

    return _define(operation, make, _ADDRESS_OPERATIONS)


def _metadata(operation: Operation, module: Module) -> Handler:
    """Base, offset, sizes and strides as separate values."""
    source, results = operands(operation)[0], operation.results

    def handle(core: Core) -> None:
        whole: MemRef = core.values[source]
        strides = whole.dense_strides if whole.strides is None else whole.strides
        parts = (replace(whole, shape=(), strides=()), whole.offset, *whole.shape, *strides)
        core.values.update(zip(results, parts, strict=True))

    return handle


def _alloca(operation: Operation, module: Module) -> Handler:
    kind = read_type(operation.text.split(" : ")[-1])
    slot = replace(kind, space=STACK, cell=id(operation), strides=None)
    return _define(operation, lambda core: slot, cost=0)


def _load(operation: Operation, module: Module) -> Handler:
    source, indices = _element(operation)
    return _define(
        operation, lambda core: core.load(core.values[source], _read(core, indices)), cost=0
    )


def _store(operation: Operation, module: Module) -> Handler:
    value = operands(operation)[0]
    target, indices = _element(operation)

    def handle(core: Core) -> None:
        core.store(core.values[target], _read(core, indices), core.values[value])

    return handle


def _element(operation: Operation) -> tuple[str, list[_Item]]:
    """Memory and indices of ``%m[%i, 0]``."""
    text = operation.text.split(" : ")[0]
    place = _INDICES.search(text)
    if place is None:
        raise ValueError(f"`operation` must name an element, got {text!r}")
    return place[0].partition("[")[0], _items(place[1])


def _define(operation: Operation, make: Callable[[Core], Any], cost: int) -> Handler:
    result = operation.results[0]

    def handle(core: Core) -> None:
        core.values[result] = make(core)
        core.count(cost)

    return handle


BUILDERS: dict[str, Builder] = {
    "hivm.hir.pointer_cast": _pointer_cast,
    "hivm.hir.bitcast": _bitcast,
    "builtin.unrealized_conversion_cast": _same,
    "memref.cast": _same,
    "memref.memory_space_cast": _same,
    "memref.collapse_shape": _collapse,
    "memref.expand_shape": _reshape,
    "memref.view": _view,
    "memref.subview": _subview,
    "memref.reinterpret_cast": _reinterpret,
    "memref.extract_strided_metadata": _metadata,
    "memref.alloca": _alloca,
    "memref.alloc": _alloca,
    "memref.load": _load,
    "memref.store": _store,
}
