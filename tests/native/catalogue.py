"""How a small kernel is checked: its arguments, what it writes, what it must have written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fa_triton.launch import runner


@dataclass(frozen=True)
class Run:
    """One launch.

    Attributes:
        args: Positional arguments.
        outputs: Tensors among them that the kernel writes.
        expected: What they must hold afterwards.
        meta: Compile-time arguments.
        grid: Programs.
        tolerance: Largest error, relative to values above 1.
    """

    args: Sequence[Any]
    outputs: Sequence[torch.Tensor]
    expected: Sequence[torch.Tensor]
    meta: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, ...] = (1,)
    tolerance: float = 1e-5

    def check(self, kernel: Any) -> None:
        """Launch the kernel and compare."""
        runner(kernel)[self.grid](*self.args, **self.meta)
        for output, expected in zip(self.outputs, self.expected, strict=True):
            torch.testing.assert_close(
                output.double(),
                expected.double(),
                rtol=self.tolerance,
                atol=self.tolerance,
                equal_nan=True,
            )


@dataclass(frozen=True)
class Case:
    """A kernel and a function that makes a run of it."""

    kernel: Any
    make: Callable[[], Run]

    @property
    def name(self) -> str:
        return self.make.__name__


def catalogue() -> tuple[list[Case], Callable[[Any], Callable[[Callable[[], Run]], None]]]:
    """An empty list of cases and the decorator that adds to it."""
    cases: list[Case] = []

    def case(kernel: Any) -> Callable[[Callable[[], Run]], None]:
        def add(make: Callable[[], Run]) -> None:
            cases.append(Case(kernel, make))

        return add

    return cases, case
