"""LLVM IR -> object code -> function address, with llvmlite."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import llvmlite.binding as llvm

from fa_triton.native.amx_permission import allow_tiles
from fa_triton.native.elf import undefined_symbols


@dataclass(frozen=True)
class HostCpu:
    """The CPU code is generated for."""

    name: str
    features: str

    @property
    def has_avx512(self) -> bool:
        """Whether 512-bit vectors are available."""
        return "+avx512f" in self.features.split(",")

    @property
    def lanes(self) -> int:
        """Floats of a vector in micro-kernels; 0 on a CPU that has none of them."""
        if self.has_avx512:
            return 16
        return 8 if {"+avx2", "+fma", "+f16c"} <= set(self.features.split(",")) else 0

    @property
    def has_bf16(self) -> bool:
        """Whether 512-bit vectors are rounded to bf16 in one instruction."""
        return "+avx512bf16" in self.features.split(",")

    @property
    def has_amx(self) -> bool:
        """Whether bf16 matrices can be multiplied in a unit of their own."""
        return {"+amx-tile", "+amx-bf16", "+avx512bw"} <= set(self.features.split(","))


@functools.lru_cache(maxsize=1)
def host_cpu() -> HostCpu:
    """Name and features of this machine's CPU, as LLVM spells them."""
    features = llvm.get_host_cpu_features().flatten()
    if "+amx-tile" in features.split(",") and not allow_tiles():
        features = features.replace("+amx-", "-amx-")
    if "+avx512f" in features.split(","):
        # LLVM's tuning for several CPUs vectorises at half the width.
        features += ",-prefer-256-bit"
    return HostCpu(llvm.get_host_cpu_name(), features)


@functools.lru_cache(maxsize=1)
def _target() -> llvm.Target:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def _resolvable(symbol: str) -> bool:
    return any(hasattr(library, symbol) for library in (ctypes.CDLL(None), _libm()))


@functools.lru_cache(maxsize=1)
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)


def compile_object(text: str) -> bytes:
    """Optimise and compile LLVM IR for this CPU.

    -O2 with the loop vectoriser but without unrolling and SLP: -O3 with all of it costs 2-5x the
    compile time for the same attention speed, since matmuls are register-tiled already.

    Raises:
        NotImplementedError: The code needs a symbol this process does not have.
        RuntimeError: LLVM rejects the IR.
    """
    cpu = host_cpu()
    machine = _target().create_target_machine(cpu=cpu.name, features=cpu.features, opt=3, jit=True)
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = True
    tuning.slp_vectorization = False
    tuning.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    code = machine.emit_object(module)
    # MCJIT would call an unresolved symbol at address 0.
    missing = [name for name in undefined_symbols(code) if not _resolvable(name)]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        raise NotImplementedError(f"{names} has no native CPU implementation")
    return code


@dataclass(frozen=True)
class LoadedCode:
    """Object code in memory; the engine owns it and must outlive every call."""

    engine: llvm.ExecutionEngine
    address: int


def load_object(code: bytes, symbol: str) -> LoadedCode:
    """Load object code into this process.

    Args:
        code: What ``compile_object`` returned.
        symbol: Function to look up.
    """
    _libm()
    machine = _target().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return LoadedCode(engine, engine.get_function_address(symbol))
