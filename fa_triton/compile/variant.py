"""The kernels we ship, as data: one entry per kernel and tile, and what it declares to be."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fa_triton.compile.check import compile_for
from fa_triton.compile.report import CompileReport


@dataclass(frozen=True)
class Properties:
    """What a compiled kernel is expected to have on one target.

    Attributes:
        pipelined: Cube and vector cores overlap in the loop around the matrix products.
        rows_shared: The two vector cores share the rows.
        relays: Loaded operand tiles that pass through a vector core.
        scalar_loops: Loops that handle one row or one element per step.
        reason: Why something is missing; required if anything is.
    """

    pipelined: bool
    rows_shared: bool
    relays: int = 0
    scalar_loops: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse a missing property without a reason."""
        complete = self.pipelined and self.rows_shared and not self.relays + self.scalar_loops
        if not complete and not self.reason:
            raise ValueError(
                "`reason` must say why a property is missing, got none for "
                f"pipelined={self.pipelined}, rows_shared={self.rows_shared}, "
                f"relays={self.relays}, scalar_loops={self.scalar_loops}"
            )


FULL = Properties(pipelined=True, rows_shared=True)
VECTOR_ONLY = Properties(
    pipelined=False, rows_shared=False, reason="no matrix product: every vector core is a program"
)


@dataclass(frozen=True)
class KernelVariant:
    """One shipped form of a kernel.

    Attributes:
        op: Operator it belongs to, ``flash_attn``.
        kernel: Short name of the kernel.
        tile: Its tile, for people: ``64x256``.
        key: Name that the launcher logs; unique.
        jit: Where the function lies, ``package.module:function``.
        signature: Argument types, see :func:`~fa_triton.compile.compile_for`.
        constants: ``constexpr`` values and absent tensors.
        properties: By target name; the targets it is shipped for.
        options: Launch options.
    """

    op: str
    kernel: str
    tile: str
    key: str
    jit: str
    signature: Mapping[str, str]
    constants: Mapping[str, object]
    properties: Mapping[str, Properties]
    options: Mapping[str, object] = field(default_factory=dict)

    def resolve(self) -> Any:
        """Import the ``@triton.jit`` function."""
        module, _, name = self.jit.partition(":")
        return getattr(importlib.import_module(module), name)


def check(report: CompileReport, properties: Properties) -> list[str]:
    """Compare what a compile found with what the kernel declares.

    Args:
        report: Result of a compile.
        properties: The declaration for that target.

    Returns:
        One sentence per mismatch, in either direction; empty if all is as declared.
    """
    if not report.core:
        return ["does not compile: " + "; ".join(report.diagnostics)]
    mismatches = [] if report.ok else list(report.diagnostics)
    for name, say in (
        ("pipelined", lambda value: "pipelined" if value else "not pipelined"),
        ("rows_shared", lambda value: "rows shared" if value else "rows not shared"),
        ("relays", lambda value: f"relays {value}"),
        ("scalar_loops", lambda value: f"scalar loops {value}"),
    ):
        declared, found = getattr(properties, name), getattr(report, name)
        if declared != found:
            mismatches.append(f"declared {say(declared)}, compiled {say(found)}")
    return mismatches


@dataclass(frozen=True)
class VariantResult:
    """One variant compiled for one target, against its declaration."""

    variant: KernelVariant
    target: str
    report: CompileReport
    mismatches: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it compiles and is what it declares to be."""
        return self.report.ok and not self.mismatches

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; ``ok`` covers the declaration too."""
        properties = self.variant.properties[self.target]
        return self.report.to_dict() | {
            "op": self.variant.op,
            "kernel": self.variant.kernel,
            "tile": self.variant.tile,
            "key": self.variant.key,
            "target": self.target,
            "ok": self.ok,
            "mismatches": list(self.mismatches),
            "reason": properties.reason,
        }


def compile_variant(variant: KernelVariant, target: str) -> VariantResult:
    """Compile a variant for one of its targets.

    Args:
        variant: The variant.
        target: A target the variant declares properties for, or a device name of the same
            family, whose declaration then counts.

    Raises:
        ValueError: The variant is not shipped for the target.
    """
    if target not in variant.properties:
        raise ValueError(
            f"`target` must be among {', '.join(variant.properties)} for {variant.key}, "
            f"got {target!r}"
        )
    report = compile_for(
        variant.resolve(), variant.signature, variant.constants, target, variant.options
    )
    return VariantResult(variant, target, report, tuple(check(report, variant.properties[target])))
