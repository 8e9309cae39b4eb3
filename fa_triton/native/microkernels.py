"""Hand-made code for what attention spends its time on, as generated LLVM IR.

MLIR's register-tiled loops know neither the matrix unit nor 16-bit products, they widen and
transpose whole operands in memory first, and they pass over a tile once per operation. Where the
sizes allow it a matmul, or the exponentials of a softmax, become a call of a function that is
generated for exactly these sizes, element types and layouts.

The Linalg text is marked before bufferization (:func:`mark_kernels`), marked operations become
calls after it (:func:`call_kernels`), and the functions are added to the LLVM IR
(:func:`define_kernels`).
"""

from __future__ import annotations

from fa_triton.native.micro_calls import Calls, define_kernels
from fa_triton.native.micro_exp_sum_edits import call_exponentials, mark_exponentials
from fa_triton.native.micro_matmul_edits import call_matmuls, mark_matmuls
from fa_triton.native.object_code import HostCpu

__all__ = ["call_kernels", "define_kernels", "mark_kernels"]


def mark_kernels(text: str, cpu: HostCpu) -> str:
    """Mark in a Linalg module what a micro-kernel can do."""
    return mark_matmuls(mark_exponentials(text, cpu), cpu)


def call_kernels(text: str) -> str:
    """Replace the marks of a bufferized module by calls."""
    calls = Calls()
    return calls.declare(call_exponentials(call_matmuls(text, calls), calls))
