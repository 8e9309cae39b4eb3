"""One kernel variant, from source or from the disk cache to callable code."""

from __future__ import annotations

import functools
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from triton.runtime.jit import JITFunction

from fa_triton.native import cache
from fa_triton.native.direct_loads import read_tiles_in_place
from fa_triton.native.errors import LoweringError
from fa_triton.native.fingerprint import fingerprint
from fa_triton.native.front_end import Specialization, source_file, to_linalg
from fa_triton.native.guarded_access import guard_masked_accesses
from fa_triton.native.library_calls import add_library_bodies
from fa_triton.native.linalg_edits import (
    drop_hints,
    open_broadcasts,
    split_row_extrema,
    widen_matmul_operands,
)
from fa_triton.native.llvm_ir import DRIVER, KernelSignature, finish, kernel_signature, translate
from fa_triton.native.microkernels import call_kernels, define_kernels, mark_kernels
from fa_triton.native.object_code import LoadedCode, compile_object, host_cpu, load_object
from fa_triton.native.passes import BUFFERIZE, INLINE, SCHEDULE, TO_LLVM, run_passes
from fa_triton.native.schedule import AVX512_TILE, NARROW_TILE, add_schedule
from fa_triton.native.toolchain import toolchain

# A strided memref.copy would call MLIR's C runner library; a linalg.copy becomes a loop.
_MEMREF_COPY = re.compile(r"memref\.copy (%[\w#]+), (%[\w#]+) : (.*) to (.*)$", re.M)


@dataclass(frozen=True)
class Variant:
    """A compiled kernel variant.

    Attributes:
        code: Its machine code.
        arguments: MLIR types of its run-time arguments.
        serial: Programs update shared memory (atomics), so they must run on one thread.
        seconds: Time it took to compile it, or to load it.
        from_cache: Whether it came from the disk cache.
    """

    code: LoadedCode
    arguments: tuple[str, ...]
    serial: bool
    seconds: float
    from_cache: bool


def to_llvm_dialect(linalg: str) -> str:
    """Lower the Linalg module to the LLVM dialect."""
    text, has_bodies = add_library_bodies(drop_hints(linalg))
    text = guard_masked_accesses(text)
    text = mark_kernels(text, host_cpu())
    text = read_tiles_in_place(widen_matmul_operands(text))
    text = open_broadcasts(split_row_extrema(text))
    text = run_passes(text, (*(INLINE if has_bodies else ()), *BUFFERIZE))
    text = _MEMREF_COPY.sub(r"linalg.copy ins(\1 : \3) outs(\2 : \4)", text)
    text = call_kernels(text)
    tile = AVX512_TILE if host_cpu().has_avx512 else NARROW_TILE
    text, has_schedule = add_schedule(text, tile)
    if has_schedule:
        text = run_passes(text, SCHEDULE)
    return run_passes(text, TO_LLVM)


@dataclass(frozen=True)
class Lowered:
    """A kernel variant as LLVM IR."""

    llvm_ir: str
    signature: KernelSignature
    serial: bool


def lower(kernel: JITFunction, specialization: Specialization) -> Lowered:
    """Lower a kernel variant to LLVM IR.

    Raises:
        RuntimeError: A step refused it; the message names the kernel and the saved IR.
        NotImplementedError: It calls what has no CPU implementation.
    """
    try:
        linalg = to_linalg(kernel, specialization)
        signature = kernel_signature(linalg)
        text = define_kernels(finish(translate(to_llvm_dialect(linalg)), signature), host_cpu())
    except LoweringError as error:
        message = error.describe(kernel.__name__, source_file(kernel))
        raise RuntimeError(message) from error
    except NotImplementedError as error:
        raise NotImplementedError(
            f"kernel `{kernel.__name__}` ({source_file(kernel)}): {error}"
        ) from None
    # Atomics are plain read-modify-write loops in this IR, marked by an attribute.
    return Lowered(text, signature, serial="Atomic" in linalg)


@functools.lru_cache(maxsize=1)
def _environment_key() -> str:
    """Everything besides the kernel that decides about the code: versions, this package, CPU."""
    own = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        own.update(path.read_bytes())
    return repr((toolchain(), host_cpu(), own.hexdigest()))


def variant_key(kernel: JITFunction, specialization: Specialization) -> str:
    """Disk-cache key of a variant; needs neither the front end nor the compiler."""
    parts = (fingerprint(kernel), specialization.key(), _environment_key())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def compile_variant(kernel: JITFunction, specialization: Specialization) -> Variant:
    """Load a variant from the disk cache, or compile and store it.

    Raises:
        RuntimeError: A lowering step refused it, or the toolchain is not the expected one.
        NotImplementedError: It calls what has no CPU implementation.
    """
    start = time.perf_counter()
    key = variant_key(kernel, specialization)
    entry = cache.load(key)
    from_cache = entry is not None
    if entry is None:
        lowered = lower(kernel, specialization)
        header = {
            "kernel": kernel.__name__,
            "arguments": lowered.signature.arguments,
            "serial": lowered.serial,
        }
        entry = cache.Entry(header, compile_object(lowered.llvm_ir))
        cache.store(key, entry)
    code = load_object(entry.object_code, DRIVER)
    return Variant(
        code=code,
        arguments=tuple(entry.header["arguments"]),
        serial=entry.header["serial"],
        seconds=time.perf_counter() - start,
        from_cache=from_cache,
    )
