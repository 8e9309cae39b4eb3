"""State of one core while its function is executed, and the walk over blocks and operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from perf.model.memref import GLOBAL, STACK, MemRef
from perf.model.mlir import Block, Function, Module, Operation
from perf.model.stream import Event, Scalar


@dataclass(frozen=True)
class Leave:
    """How a block ends.

    Attributes:
        kind: ``branch``, ``yield``, ``condition`` or ``return``.
        values: Handed on.
        label: Block to go to, of a branch.
        holds: Of a condition.
    """

    kind: str
    values: tuple[Any, ...] = ()
    label: str = ""
    holds: bool = False


@dataclass(frozen=True)
class Position:
    """Which program a core runs: block and sub-block (vector core of a cube core)."""

    block: int = 0
    sub_block: int = 0
    num_blocks: int = 1


Handler: TypeAlias = "Callable[[Core], Leave | None]"
Builder: TypeAlias = "Callable[[Operation, Module], Handler]"


class UnknownOperationError(NotImplementedError):
    """An operation or library function that the model has no rule for: no guess is made."""


class Core:
    """One core.

    Args:
        module: Its program.
        builders: Makers of handlers by name of operation.
        contents: Values of integer arguments in global memory, by name of argument.
        position: Which program it runs.
    """

    def __init__(
        self,
        module: Module,
        builders: Mapping[str, Builder],
        contents: Mapping[str, Sequence[float]],
        position: Position,
    ) -> None:
        self.module = module
        self.builders = builders
        self.contents = contents
        self.position = position
        self.values: dict[str, Any] = {}
        self.events: list[Event] = []
        self._handlers: dict[Operation, Handler] = {}
        self._stack: dict[tuple[int, int], Any] = {}
        self._operations = self._calls = self._loads = 0

    def run(self, function: Function, arguments: Sequence[Any]) -> list[Event]:
        """Execute a function; return what it issued.

        Raises:
            UnknownOperationError: It holds an operation without a rule.
            ValueError: It reads an integer from memory whose contents are not given.
        """
        self.values = dict(zip(function.arguments, arguments, strict=True))
        self.execute(function.blocks)
        self._flush()
        return self.events

    def execute(self, blocks: Sequence[Block]) -> Leave | None:
        """Execute a region; return how it ends."""
        block = blocks[0]
        by_label = {block.label: block for block in blocks}
        while True:
            leave = self._execute_block(block)
            if leave is None or leave.kind != "branch":
                return leave
            block = by_label[leave.label]
            self.values.update(zip(block.arguments, leave.values, strict=True))

    def _execute_block(self, block: Block) -> Leave | None:
        handlers = self._handlers
        for operation in block.operations:
            handler = handlers.get(operation)
            if handler is None:
                handler = handlers[operation] = self._build(operation)
            leave = handler(self)
            if leave is not None:
                return leave
        return None

    def _build(self, operation: Operation) -> Handler:
        builder = self.builders.get(operation.name)
        if builder is None:
            family = operation.name.partition(".")[0]
            builder = self.builders.get(f"{family}.*")
        if builder is None:
            raise UnknownOperationError(f"no rule for operation {operation.name!r}")
        return builder(operation, self.module)

    def count(self, operations: int) -> None:
        """Add scalar instructions."""
        self._operations += operations

    def count_call(self) -> None:
        """Add the call of a library function."""
        self._calls += 1

    def issue(self, event: Event) -> None:
        """Append an event behind the scalar instructions so far."""
        self._flush()
        self.events.append(event)

    def _flush(self) -> None:
        if self._operations or self._calls or self._loads:
            self.events.append(Scalar(self._operations, self._calls, self._loads))
            self._operations = self._calls = self._loads = 0

    def load(self, memory: MemRef, indices: list[int]) -> Any:
        """Read one element; numbers in a buffer of the chip are not known and read as 0."""
        place = memory.place(indices)
        if memory.space == STACK:
            self._operations += 1
            return self._stack.get((memory.cell, place), 0)
        if memory.space != GLOBAL:
            self._operations += 1
            return 0
        self._loads += 1
        contents = self.contents.get(memory.origin)
        if contents is None:
            if memory.dtype.startswith(("f", "bf")):
                return 0.0
            raise ValueError(
                f"`contents` must hold the integers of {memory.origin or 'a pointer'}, got none"
            )
        return contents[place]

    def store(self, memory: MemRef, indices: list[int], value: Any) -> None:
        """Write one element of the stack; elsewhere only the instruction counts."""
        self._operations += 1
        if memory.space == STACK:
            self._stack[memory.cell, memory.place(indices)] = value
