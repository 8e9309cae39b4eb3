"""A failed lowering step: which tool, what it said, where the IR lies."""

from __future__ import annotations

import tempfile

_MARKS = ("error:", "Assertion", "LLVM ERROR", "PLEASE submit")


def first_diagnostic(output: str) -> str:
    """Pick the first line that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for mark in _MARKS:
        for line in lines:
            if mark in line:
                return line
    return lines[0] if lines else "no diagnostic"


class LoweringError(RuntimeError):
    """One step of the lowering failed.

    Args:
        tool: Name of the program that failed.
        output: What it printed.
        ir: The module it was given.
    """

    def __init__(self, tool: str, output: str, ir: str) -> None:
        """Keep the parts; ``describe`` builds the message a user sees."""
        self.tool = tool
        self.diagnostic = first_diagnostic(output)
        self.ir = ir
        super().__init__(f"{tool}: {self.diagnostic}")

    def describe(self, kernel: str, source: str) -> str:
        """Save the IR and say which kernel failed, why, and where the IR lies.

        Args:
            kernel: Name of the kernel.
            source: File the kernel is defined in.
        """
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"{kernel}-", suffix=".mlir", delete=False
        ) as file:
            file.write(self.ir)
        return (
            f"kernel `{kernel}` ({source}) must lower to native code, got from {self.tool}: "
            f"{self.diagnostic} [IR saved in {file.name}]"
        )
