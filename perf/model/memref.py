"""What a memref value stands for: how much memory of which kind, and whose."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

_TYPE = re.compile(
    r"memref<((?:(?:\?|\d+)x)*)(\w+)(?:, (?:strided<\[([^\]]*)\][^>]*>|#map\d*|affine_map<.*?>))?"
    r"(?:, #hivm\.address_space<(\w+)>)?"
)
_BITS = {
    "f32": 32,
    "bf16": 16,
    "f16": 16,
    "i64": 64,
    "i32": 32,
    "i16": 16,
    "i8": 8,
    "i1": 1,
    "index": 64,
}
GLOBAL = "gm"
STACK = "stack"
DYNAMIC = -1


@dataclass(frozen=True)
class MemRef:
    """A part of a memory.

    Attributes:
        shape: Sizes; ``DYNAMIC`` where only the type of an argument is known.
        dtype: ``bf16``, ``f32`` ...
        space: ``gm``, ``ub``, ``cbuf`` (L1), ``cc`` (L0C) or ``stack``.
        strides: In elements; None for dense rows.
        origin: Argument of the kernel that it lies in, for ``gm``.
        offset: Elements from the start of ``origin``.
        cell: Identity of a stack slot.
    """

    shape: tuple[int, ...]
    dtype: str
    space: str = GLOBAL
    strides: tuple[int, ...] | None = None
    origin: str = ""
    offset: int = 0
    cell: int = 0

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def element_bits(self) -> int:
        """Size of an element."""
        return _BITS[self.dtype]

    @property
    def bytes(self) -> int:
        """Size of all elements, rounded up."""
        return self.bytes_of(self.elements)

    @property
    def columns(self) -> int:
        """Elements of a row: the last dimension; 1 for a scalar."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """Rows of the last dimension."""
        return self.elements // self.columns if self.columns else 0

    def bytes_of(self, elements: int) -> int:
        """Size of some elements, rounded up."""
        return -(-elements * self.element_bits // 8)

    @property
    def dense_strides(self) -> tuple[int, ...]:
        """Strides of rows that lie behind each other."""
        return tuple(math.prod(self.shape[at + 1 :]) for at in range(len(self.shape)))

    def place(self, indices: list[int]) -> int:
        """Element of ``origin`` that indices name."""
        strides = self.dense_strides if self.strides is None else self.strides
        return self.offset + sum(i * s for i, s in zip(indices, strides, strict=False))

    def renamed(self, other: MemRef) -> MemRef:
        """The same memory under another type; a dynamic size keeps the number of elements."""
        shape = other.shape
        if DYNAMIC in shape:
            known = math.prod(size for size in shape if size != DYNAMIC)
            left = max(1, self.elements // known) if known else 0
            shape = tuple(left if size == DYNAMIC else size for size in shape)
        return replace(self, shape=shape, dtype=other.dtype, space=other.space, strides=None)


def read_type(text: str) -> MemRef:
    """Read the first memref type of a text.

    Raises:
        ValueError: There is none, or its elements are of an unknown dtype.
    """
    found = _TYPE.search(text)
    if found is None or found[2] not in _BITS:
        raise ValueError(f"`text` must name a memref of known elements, got {text[:80]!r}")
    sizes = [size for size in found[1].split("x") if size]
    return MemRef(
        shape=tuple(DYNAMIC if size == "?" else int(size) for size in sizes),
        dtype=found[2],
        space=found[4] or GLOBAL,
        strides=_strides(found[3]),
    )


def _strides(text: str | None) -> tuple[int, ...] | None:
    if not text or "?" in text:
        return None
    return tuple(int(stride) for stride in text.split(","))
