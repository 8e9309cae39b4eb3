"""Kernel and specialisation -> the Linalg text that also goes to the Ascend compiler."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton.runtime.jit import JITFunction

from fa_triton.native.adapter import adapt
from fa_triton.native.passes import run_passes
from fa_triton.native.toolchain import triton_adapter_opt

# The CPU runs what ships for the A2/A3 generation.
ARCHITECTURE = "Ascend910B3"


@dataclass(frozen=True)
class Specialization:
    """What Triton specialises a kernel by.

    Attributes:
        signature: Type of every parameter in order; ``constexpr`` for compile-time values.
        constants: Compile-time values by name, arguments equal to 1 included.
        divisible: Indices of the arguments known to be divisible by 16.
    """

    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: tuple[int, ...]

    def key(self) -> str:
        """Text that is equal for equal specialisations, in every process."""
        constants = [(name, repr(value)) for name, value in self.constants.items()]
        return repr((list(self.signature.items()), constants, self.divisible))


def source_file(kernel: JITFunction) -> str:
    """File a kernel is defined in."""
    return inspect.getsourcefile(kernel.fn) or "<unknown>"


def to_linalg(kernel: JITFunction, specialization: Specialization) -> str:
    """Lower a kernel with triton-ascend's own front end.

    Args:
        kernel: The ``@triton.jit`` function.
        specialization: Types, compile-time values and alignment.

    Raises:
        LoweringError: triton-adapter-opt refused the kernel, or died of it every time.
    """
    from triton._C.libtriton import ir
    from triton.backends.ascend.compiler import (
        AscendAttrsDescriptor,
        AscendBackend,
        make_ttir,
    )
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    triton_adapter_opt()
    target = GPUTarget("npu", ARCHITECTURE, 0)
    backend = AscendBackend(target)
    options = backend.parse_options({})
    # Annotated as a list of pairs, used as a mapping.
    hints: Any = dict.fromkeys(specialization.divisible, 16)
    source = ASTSource(
        kernel,
        dict(specialization.signature),
        dict(specialization.constants),
        AscendAttrsDescriptor.from_hints(hints),
    )
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        options, backend.get_codegen_implementation(), backend.get_module_map(), context
    )
    metadata = dict(options.__dict__, target=target, hash="")
    module = make_ttir(module, metadata, options)
    linalg = adapt(module, metadata, options)
    # Locations (TRITON_DISABLE_LINE_INFO=0) would stand in the way of the text edits.
    return run_passes(linalg, ()) if " loc(" in linalg else linalg
