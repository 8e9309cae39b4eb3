"""The Ascend compile check: does a kernel compile for a device, and how good is the result.

    front_end        kernel + specialisation -> TTIR and Linalg
    options          launch options and compiler flags
    mix_mode         keeps the attribute the A5 compiler chooses its pipeline by
    ascend_compiler  runs bishengir-compile(-a5)
    regions          reader of MLIR text
    ttir, hivm       facts from the text before and after
    source           hash of a kernel with its helpers
    check            compile_for: the steps above in order -> report
    cache            finished compiles on disk
    variant, shipped the kernels we ship, with the properties each declares
    batch            many variants in parallel processes
    records          committed results

Importing this package imports no triton.
"""

from fa_triton.compile.check import compile_for
from fa_triton.compile.report import CompileReport

__all__ = ["CompileReport", "compile_for"]
