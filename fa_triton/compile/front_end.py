"""Kernel and specialisation to TTIR and Linalg, as triton-ascend lowers them for a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fa_triton.native.adapter import adapt
from fa_triton.native.errors import LoweringError
from fa_triton.targets import Target

_SPECIALISATIONS = {"": None, "16": 16, "1": 1}


@dataclass(frozen=True)
class Lowered:
    """A kernel on its way to the device compiler."""

    ttir: str
    linalg: str


@dataclass(frozen=True)
class Specialisation:
    """What triton derives from a call's arguments.

    Attributes:
        types: Type of each argument that is no ``constexpr``, in the kernel's order.
        constants: Value of each ``constexpr`` argument, of each absent tensor (None) and of each
            integer that equals 1.
        hints: Argument position to 16 (divisible by 16) or 1 (equal to 1).
    """

    types: dict[str, str]
    constants: dict[str, object]
    hints: dict[int, int]


def specialise(
    kernel: Any, signature: Mapping[str, str], constants: Mapping[str, object]
) -> Specialisation:
    """Bring signature and constants into the form triton's own launch gives them.

    Args:
        kernel: The ``@triton.jit`` function.
        signature: Triton type of each run-time argument: ``"*bf16"``, ``"i32"``, ``"fp32"``, with
            ``":16"`` for divisible by 16 and ``":1"`` for equal to 1.
        constants: Values of ``constexpr`` arguments; None for absent tensors.

    Raises:
        ValueError: An argument is unknown, missing, or has a malformed type.
    """
    names = list(kernel.arg_names)
    unknown = sorted((set(signature) | set(constants)) - set(names))
    if unknown:
        raise ValueError(
            f"`signature` and `constants` must name arguments of {kernel.__name__}, "
            f"got {', '.join(unknown)}"
        )
    missing = [name for name in names if name not in signature and name not in constants]
    if missing:
        raise ValueError(
            f"`signature` or `constants` must hold every argument of {kernel.__name__}, "
            f"got none for {', '.join(missing)}"
        )
    types: dict[str, str] = {}
    values: dict[str, object] = {}
    hints: dict[int, int] = {}
    for position, name in enumerate(names):
        if name in constants:
            values[name] = constants[name]
            if not kernel.params[position].is_constexpr:
                types[name] = "*i8"
            continue
        base, _, mark = signature[name].partition(":")
        if not base or mark not in _SPECIALISATIONS:
            raise ValueError(
                f"`signature[{name!r}]` must be a triton type, optionally with :16 or :1, "
                f"got {signature[name]!r}"
            )
        types[name] = base
        hint = _SPECIALISATIONS[mark]
        if hint is not None:
            hints[position] = hint
        if hint == 1:
            values[name] = 1
    return Specialisation(types, values, hints)


def lower(
    kernel: Any, spec: Specialisation, target: Target, options: Mapping[str, object]
) -> Lowered:
    """Lower a kernel to the Linalg text that the device compiler is given.

    Args:
        kernel: The ``@triton.jit`` function.
        spec: Result of :func:`specialise`.
        target: Device to compile for.
        options: Launch options, completed for the target.

    Raises:
        LoweringError: Triton or its adapter rejects the kernel.
    """
    from triton._C.libtriton import ir
    from triton.backends.ascend.compiler import (
        AscendAttrsDescriptor,
        AscendBackend,
        make_ttir,
    )
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError

    gpu_target = GPUTarget("npu", target.arch, 0)
    backend = AscendBackend(gpu_target)
    parsed = backend.parse_options(dict(options))
    # Annotated as a list of pairs, used as a mapping.
    hints: Any = spec.hints
    attributes = AscendAttrsDescriptor.from_hints(hints)
    source = ASTSource(kernel, spec.types, spec.constants, attributes)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    try:
        module = source.make_ir(
            parsed, backend.get_codegen_implementation(), backend.get_module_map(), context
        )
    except CompilationError as error:
        raise LoweringError("triton", f"error: {_innermost(error)}", "") from error
    metadata: dict[str, Any] = dict(parsed.__dict__)
    metadata |= {"target": gpu_target, "hash": "compile-check"}
    module = make_ttir(module, metadata, parsed)
    ttir = str(module)
    return Lowered(ttir, adapt(module, metadata, parsed))


def _innermost(error: BaseException) -> str:
    """Join a chain of errors in nested jit functions to one line, outermost first."""
    parts = []
    current: BaseException | None = error
    while current is not None:
        parts.append(" ".join(str(current).split()))
        current = current.__cause__
    return " / ".join(parts)
