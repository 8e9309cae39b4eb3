"""Names and addresses of a micro-kernel's operands, as MLIR passes 2-D memrefs."""

from __future__ import annotations

from dataclasses import dataclass

from fa_triton.native.microkernels.builder import BYTES, Builder

_OPERANDS = ("a", "b", "c")


def parameters(scaled: bool) -> str:
    """Parameter list: a memref is two pointers, an offset, and a size and a stride per axis."""
    matrices = [
        f"ptr %{x}_base, ptr %{x}, i64 %{x}_at, i64 %{x}_rows, i64 %{x}_columns,"
        f" i64 %{x}_stride, i64 %{x}_one"
        for x in _OPERANDS
    ]
    scale = ["ptr %scale_base, ptr %scale, i64 %scale_at, i64 %scale_rows, i64 %scale_one"]
    return ", ".join(matrices + scale * scaled)


def row_scale(b: Builder, row: str) -> str:
    """The factor of a row of C, in all lanes."""
    start = b.at("%scale", "%scale_at", "float")
    return b.broadcast(b.load("float", b.at(start, row, "float")))


@dataclass(frozen=True)
class Operand:
    """A row-major matrix in memory.

    Attributes:
        address: Its first element.
        pitch: Bytes from row to row.
        element: Element type.
    """

    address: str
    pitch: str
    element: str

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return BYTES[self.element]

    def at(self, b: Builder, row: str, column: str) -> str:
        """Address of an element."""
        offset = b.add(b.times(row, self.pitch), b.times(column, self.size))
        return b.at(self.address, offset)


def operand(b: Builder, letter: str, element: str) -> Operand:
    """Read a parameter; the inner stride is 1."""
    size = BYTES[element]
    start = b.value(f"mul i64 %{letter}_at, {size}")
    address = b.value(f"getelementptr i8, ptr %{letter}, i64 {start}")
    return Operand(address, b.value(f"mul i64 %{letter}_stride, {size}"), element)
