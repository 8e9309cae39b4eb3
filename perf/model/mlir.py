"""Reader of HIVM text: functions, blocks, operations with their regions, and affine maps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from perf.model.affine import AffineMap, parse_map

_MAP = re.compile(r"^(#map\d*) = affine_map<(.*)>$")
_FUNCTION = re.compile(r"^func\.func (?:private |public )?@([\w$.]+)\((.*)$")
_ARGUMENT = re.compile(r"(%\w+): ([^,{)]+)")
_RESULTS = re.compile(r"^((?:%[\w#-]+(?::\d+)?(?:, )?)+) = (.*)$")
_NAME = re.compile(r'^"?([\w.]+)')
_LABEL = re.compile(r"^(\^\w+)(?:\((.*)\))?:")
_BLOCK_ARGUMENT = re.compile(r"(%\w+):")
# a brace that closes one region and opens the next of the same operation
_NEXT_REGION = ("} else {", "} do {")


@dataclass(eq=False)
class Operation:
    """One operation.

    Attributes:
        name: Dialect and name, ``memref.load``.
        text: Its text behind the results.
        results: Values it defines, one name each (``%5``, or ``%5#0`` of several).
        regions: Bodies in braces.
    """

    name: str
    text: str
    results: list[str]
    regions: list[list[Block]] = field(default_factory=list)


@dataclass(eq=False)
class Block:
    """A basic block: label, values it takes, operations."""

    label: str
    arguments: list[str]
    operations: list[Operation] = field(default_factory=list)


@dataclass(eq=False)
class Function:
    """A function with a body.

    Attributes:
        name: Without the at sign.
        arguments: Names of its arguments in order, ``%arg0``.
        types: Their types as text.
        header: The line that declares it, with its attributes.
        blocks: The body.
    """

    name: str
    arguments: list[str]
    types: list[str]
    header: str
    blocks: list[Block]


@dataclass(eq=False)
class Module:
    """Functions and affine maps of one file."""

    functions: dict[str, Function]
    maps: dict[str, AffineMap]


def parse(text: str) -> Module:
    """Read a module.

    Args:
        text: A file as ``CompileReport.hivm_path`` names it.

    Raises:
        ValueError: A line that is no HIVM.
    """
    maps: dict[str, AffineMap] = {}
    found: dict[str, Function] = {}
    lines = iter(text.splitlines())
    for raw in lines:
        line = raw.strip()
        named_map = _MAP.match(line)
        if named_map:
            maps[named_map[1]] = parse_map(named_map[2])
        declared = _FUNCTION.match(line)
        if declared and line.endswith("{"):
            arguments = _ARGUMENT.findall(declared[2])
            found[declared[1]] = Function(
                name=declared[1],
                arguments=[name for name, _ in arguments],
                types=[kind.strip() for _, kind in arguments],
                header=line,
                blocks=_region(lines)[0],
            )
    return Module(found, maps)


def _region(lines: Iterator[str]) -> tuple[list[Block], str]:
    """Read up to the brace that closes a region; return its blocks and that line."""
    blocks = [Block("^entry", [])]
    for raw in lines:
        line = raw.strip()
        if not line:
            continue
        if line.startswith("}"):
            return blocks, line
        label = _LABEL.match(line)
        if label:
            blocks.append(Block(label[1], _BLOCK_ARGUMENT.findall(label[2] or "")))
            continue
        operation = _operation(line)
        blocks[-1].operations.append(operation)
        opens = line.endswith("{")
        while opens:
            region, end = _region(lines)
            # the values of a region with a label belong to its first block
            operation.regions.append(region if region[0].operations else region[1:] or region)
            opens = end.startswith(_NEXT_REGION)
    raise ValueError("`text` must close every region, got an open one at its end")


def _operation(line: str) -> Operation:
    split = _RESULTS.match(line)
    text = split[2] if split else line
    name = _NAME.match(text)
    if name is None:
        raise ValueError(f"`text` must hold operations, got {line[:80]!r}")
    return Operation(name[1], text, _result_names(split[1]) if split else [])


def _result_names(text: str) -> list[str]:
    names = []
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        names += [f"{name}#{at}" for at in range(int(count))] if count else [name]
    return names
