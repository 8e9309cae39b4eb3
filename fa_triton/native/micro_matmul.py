"""What a matmul micro-kernel is specialised on; its name says all of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fa_triton.native.micro_operands import matrix_parameters, vector_parameters

_NAME = re.compile(
    r"fa_matmul_(amx|fma|rows)_(\d+)x(\d+)x(\d+)_(bf16|f16|f32)(_i8)?(_nk)?(_new|_scaled)?"
)


@dataclass(frozen=True)
class Matmul:
    """``C[m, n] += A[m, k] B[k, n]`` with f32 sums.

    Attributes:
        unit: ``amx``, ``fma`` or ``rows``, the generator.
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A.
        element: Element type of A and B: ``bf16``, ``f16`` or ``f32``.
        integers: B is stored as ``i8``, which A's type holds exactly.
        transposed: B is stored ``[n, k]``.
        fresh: C is overwritten instead of added to.
        scaled: C's rows are multiplied by a vector first.
    """

    unit: str
    m: int
    n: int
    k: int
    element: str
    transposed: bool = False
    fresh: bool = False
    scaled: bool = False
    integers: bool = False

    @property
    def right(self) -> str:
        """Element type of B in memory."""
        return "i8" if self.integers else self.element

    @property
    def name(self) -> str:
        """Name of the function."""
        ends = ("_i8" if self.integers else "") + ("_nk" if self.transposed else "")
        ends += ("_new" if self.fresh else "") + ("_scaled" if self.scaled else "")
        return f"fa_matmul_{self.unit}_{self.m}x{self.n}x{self.k}_{self.element}{ends}"

    @property
    def parameters(self) -> str:
        """Parameter list: A, B, C, scale."""
        lists = [matrix_parameters(x) for x in "abc"]
        return ", ".join(lists + [vector_parameters("scale")] * self.scaled)

    @staticmethod
    def parse(name: str) -> Matmul:
        """The matmul of a name."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"`name` must be that of a matmul micro-kernel, got {name!r}")
        m, n, k = map(int, match.group(2, 3, 4))
        fresh, scaled = match[8] == "_new", match[8] == "_scaled"
        return Matmul(match[1], m, n, k, match[5], bool(match[7]), fresh, scaled, bool(match[6]))
