"""Calls of micro-kernels in a bufferized module, and their definitions in LLVM IR."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from fa_triton.native import micro_amx, micro_exp_sum, micro_fma, micro_rows
from fa_triton.native.micro_builder import Builder
from fa_triton.native.micro_exp_sum import ExpSum
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.object_code import HostCpu

ANY_1D = "memref<?xf32, strided<[?], offset: ?>>"
ANY_2D = "memref<?x?x{}, strided<[?, ?], offset: ?>>"
UNIT_STRIDE = re.compile(r"memref<\d+x(\d+x)?\w+(, strided<\[([\d?]+, )?1\](, offset: [\d?]+)?>)?>")

_DECLARATION = re.compile(r"^declare void @(fa_(?:matmul|exp_sum)_\w+)\(.*$\n?", re.M)
_MATMULS = {"amx": micro_amx.emit, "fma": micro_fma.emit, "rows": micro_rows.emit}


class Calls:
    """Writes calls and remembers what must be declared."""

    def __init__(self) -> None:
        self._declarations: dict[str, str] = {}
        self._numbers = itertools.count()

    def call(
        self,
        indent: str,
        kernel: str,
        values: Sequence[str],
        kinds: Sequence[str],
        types: Sequence[str],
    ) -> str:
        """Text of a call.

        Args:
            indent: Indentation.
            kernel: Name of the function.
            values: Operands.
            kinds: Their types.
            types: The function's more general types.
        """
        lines, names = [], []
        for value, kind, general in zip(values, kinds, types, strict=True):
            names.append(f"%fa_operand{next(self._numbers)}")
            lines.append(f"{names[-1]} = memref.cast {value} : {kind} to {general}")
        signature = ", ".join(types)
        lines.append(f"func.call @{kernel}({', '.join(names)}) : ({signature}) -> ()")
        self._declarations[kernel] = f"  func.func private @{kernel}({signature})\n"
        return "\n".join(indent + line for line in lines)

    def declare(self, text: str) -> str:
        """Add the declarations to the module."""
        end = text.rindex("}")
        return text[:end] + "".join(self._declarations.values()) + text[end:]


def define_kernels(text: str, cpu: HostCpu) -> str:
    """Replace the declarations of micro-kernels in LLVM IR by their definitions."""
    bodies: list[str] = []
    intrinsics: set[str] = set()

    def define(match: re.Match[str]) -> str:
        b = Builder(cpu.lanes, cpu.has_bf16)
        if match[1].startswith("fa_matmul"):
            spec = Matmul.parse(match[1])
            _MATMULS[spec.unit](b, spec)
        else:
            spec = ExpSum.parse(match[1])
            micro_exp_sum.emit(b, spec)
        b.line("ret void")
        intrinsics.update(b.declarations)
        lines = "\n".join(b.lines)
        bodies.append(
            f"define internal void @{spec.name}({spec.parameters}) noinline {{\n{lines}\n}}\n"
        )
        return ""

    text = _DECLARATION.sub(define, text)
    declared = set(re.findall(r"^declare .*?@([\w.]+)\(", text, re.M))
    wanted = [x for x in sorted(intrinsics) if x.split("@", 1)[1].split("(")[0] not in declared]
    return "\n".join((text, *bodies, *wanted, ""))
