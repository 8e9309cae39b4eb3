"""Names and addresses of a micro-kernel's operands, as MLIR passes memrefs."""

from __future__ import annotations

from dataclasses import dataclass

from fa_triton.native.micro_builder import BYTES, Builder


def matrix_parameters(name: str) -> str:
    """Parameters of a 2-D memref: two pointers, an offset, sizes, strides."""
    return (
        f"ptr %{name}_base, ptr %{name}, i64 %{name}_at, i64 %{name}_rows, i64 %{name}_columns,"
        f" i64 %{name}_stride, i64 %{name}_one"
    )


def vector_parameters(name: str) -> str:
    """Parameters of a 1-D memref."""
    return f"ptr %{name}_base, ptr %{name}, i64 %{name}_at, i64 %{name}_rows, i64 %{name}_one"


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


def matrix(b: Builder, name: str, element: str) -> Operand:
    """Read the parameters of a matrix; its inner stride is 1."""
    size = BYTES[element]
    start = b.value(f"mul i64 %{name}_at, {size}")
    address = b.value(f"getelementptr i8, ptr %{name}, i64 {start}")
    return Operand(address, b.value(f"mul i64 %{name}_stride, {size}"), element)


def vector(b: Builder, name: str) -> str:
    """Read the parameters of an f32 vector, its stride is 1; returns its address."""
    return b.at(f"%{name}", f"%{name}_at", "float")


def row_scale(b: Builder, row: str) -> str:
    """The factor of a row of C, in all lanes."""
    return b.broadcast(b.load("float", b.at(vector(b, "scale"), row, "float")))
