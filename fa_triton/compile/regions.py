"""A light reader of MLIR text: functions, lines and the loops they stand in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_FUNCTION = re.compile(r"(?:func\.func|tt\.func)(?: public)? @(\w+)\(")
_LOOP = re.compile(r"\bscf\.(?:for|while|forall)\b")
_RESULTS = re.compile(r"^(%[\w#]+(?::\d+)?(?:, %[\w#]+(?::\d+)?)*) = ")


@dataclass(eq=False)
class Region:
    """A pair of braces.

    Attributes:
        header: Line that opens it.
        attributes: Text after the closing brace.
        parent: Region around it.
    """

    header: str
    parent: Region | None = None
    attributes: str = ""

    @property
    def is_loop(self) -> bool:
        """Whether the region is the body of a loop."""
        return _LOOP.search(self.header) is not None

    def loops(self) -> Iterator[Region]:
        """Yield this region and those around it that are loops, innermost first."""
        region: Region | None = self
        while region is not None:
            if region.is_loop:
                yield region
            region = region.parent


@dataclass
class Line:
    """One operation of a function."""

    number: int
    text: str
    region: Region
    # Basic block, for functions that were lowered to branches.
    block: str


@dataclass
class Function:
    """A function with a body."""

    name: str
    header: str
    lines: list[Line] = field(default_factory=list)
    _definitions: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def append(self, line: Line) -> None:
        """Add an operation and note the values it defines."""
        found = _RESULTS.match(line.text)
        if found:
            for name in found[1].split(", "):
                bare = name.partition(":")[0]
                self._definitions.setdefault(bare, []).append(len(self.lines))
        self.lines.append(line)

    def definition(self, name: str, before: int) -> int | None:
        """Find the operation that defines a value.

        Sibling regions reuse names, so the nearest definition above the use counts.

        Args:
            name: Value, with or without result number (``%5#1``).
            before: Position in ``lines`` of the use.

        Returns:
            Position in ``lines``, or None for a block argument.
        """
        bare = name.partition("#")[0]
        return next((at for at in reversed(self._definitions.get(bare, ())) if at < before), None)


def functions(text: str) -> list[Function]:
    """Split module text into its functions with a body."""
    found: list[Function] = []
    stack: list[Region] = []
    depth_of_function = -1
    block = ""
    for number, raw in enumerate(text.splitlines()):
        text_line = raw.strip()
        if not text_line:
            continue
        match = _FUNCTION.search(text_line)
        if match and text_line.endswith("{"):
            found.append(Function(match[1], text_line))
            stack.append(Region(text_line))
            depth_of_function = len(stack)
            block = ""
            continue
        inside = depth_of_function > 0 and len(stack) >= depth_of_function
        if text_line.startswith("}"):
            if stack:
                closed = stack.pop()
                closed.attributes = text_line[1:].strip()
                if text_line.endswith("{"):
                    # `} else {` and `} do {` continue what the first brace opened.
                    stack.append(Region(closed.header, closed.parent))
            continue
        if inside and text_line.startswith("^bb"):
            block = text_line.partition("(")[0].partition(":")[0]
            continue
        if inside:
            found[-1].append(Line(number, text_line, stack[-1], block))
        if text_line.endswith("{"):
            stack.append(Region(text_line, stack[-1] if stack else None))
    return found
