"""The pass pipelines, as data, and the tool that runs them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from fa_triton.native.errors import LoweringError
from fa_triton.native.toolchain import bishengir_opt

# Library bodies are inlined before bufferization so that their buffers are shared.
INLINE = ("--inline", "--symbol-dce")

# Tensors -> memrefs. Loops may yield fresh buffers, hence return-allocs and the deallocation
# pipeline; LICM on tensors keeps fills and widened operands out of the inner loop.
BUFFERIZE = (
    "--loop-invariant-code-motion",
    "--convert-elementwise-to-linalg",
    "--linalg-fuse-elementwise-ops",
    "--canonicalize",
    "--cse",
    "--eliminate-empty-tensors",
    "--empty-tensor-to-alloc-tensor",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true",
    "--canonicalize",
    "--cse",
    "--buffer-loop-hoisting",
    "--buffer-deallocation-pipeline",
    "--convert-bufferization-to-memref",
    "--canonicalize",
    "--cse",
)

# Run the schedule that was prepended to the module. Full unrolling: a partial vector-to-scf
# leaves allocas inside loops and overflows the stack.
SCHEDULE = (
    "--transform-interpreter",
    "--test-transform-dialect-erase-schedule",
    "--canonicalize",
    "--cse",
    "--convert-vector-to-scf=full-unroll=true target-rank=1",
)

# Memrefs -> LLVM dialect.
TO_LLVM = (
    "--convert-linalg-to-loops",
    "--loop-invariant-code-motion",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-vector-to-scf=full-unroll=true target-rank=1",
    "--canonicalize",
    "--cse",
    "--convert-scf-to-cf",
    "--convert-vector-to-llvm",
    "--lower-affine",
    "--arith-expand=include-bf16=true",
    "--memref-expand",
    "--convert-math-to-llvm",
    "--convert-math-to-libm",
    "--convert-arith-to-llvm",
    "--convert-index-to-llvm",
    "--convert-ub-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-cf-to-llvm",
    "--canonicalize",
    "--reconcile-unrealized-casts",
)


def run_passes(text: str, passes: Sequence[str]) -> str:
    """Run MLIR passes over a module.

    Args:
        text: The module.
        passes: Command-line flags of bishengir-opt.

    Raises:
        LoweringError: The tool failed; it carries the diagnostics and the module.
    """
    process = subprocess.run(
        [str(bishengir_opt()), "-", *passes], input=text.encode(), capture_output=True, check=False
    )
    if process.returncode:
        raise LoweringError("bishengir-opt", process.stderr.decode(errors="replace"), text)
    return process.stdout.decode()
