"""Triton kernels as native CPU code.

The Linalg IR that triton-ascend hands to the Ascend compiler is lowered here to the LLVM dialect,
translated to LLVM IR, compiled by LLVM and called through ctypes:

    front_end        kernel + specialisation -> Linalg text
    linalg_edits     rewrites before bufferization; more in library_calls and guarded_access
    passes           the pass pipelines, as data, and the tool that runs them
    schedule         transform script that register-tiles matmuls and transposes
    llvm_ir          translation, clean-up, math_functions, the grid driver
    object_code      LLVM IR -> object code -> function address
    cache            compiled variants on disk
    compiler         the steps above in order
    arguments        a call's arguments -> specialisation and packed argument slots
    kernel           one kernel's compiled variants and their launches
    threads          programs of a grid over a persistent thread pool
    toolchain        versions and executables this path relies on
"""
