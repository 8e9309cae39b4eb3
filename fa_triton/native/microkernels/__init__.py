"""Hand-made code for matmuls, as generated LLVM IR.

MLIR's register-tiled loops know neither the matrix unit nor 16-bit products, and they widen and
transpose whole operands in memory first. Where the sizes allow it a matmul becomes a call of a
function that is generated for exactly these sizes, element types and layouts.
"""

from fa_triton.native.microkernels.edits import call_kernels, define_kernels, mark_matmuls

__all__ = ["call_kernels", "define_kernels", "mark_matmuls"]
