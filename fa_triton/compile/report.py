"""What one compile of one kernel for one target found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class CompileReport:
    """Outcome of compiling a kernel for an Ascend target, up to the device assembler.

    It says what the compiler did with the kernel; nothing here ran on a device.

    Attributes:
        ok: The kernel compiles for the target, no matrix product was lost and the compiler did
            not quietly retry with optimisations switched off.
        kernel: Name of the kernel function.
        target: ``A2``, ``A3``, ``A5`` or a device name.
        arch: Device name that was compiled for.
        core: ``mix`` (cube and vector cores), ``aic`` (cube only), ``aiv`` (vector only); empty
            if the compile failed.
        ub_bytes: Planned peak of the unified buffer, per vector core.
        ub_limit: Its capacity.
        l1_bytes: Planned peak of L1, per cube core.
        l1_limit: Its capacity.
        l0c_bytes: Planned peak of the accumulator buffer, per cube core.
        l0c_limit: Its capacity.
        dots: ``tt.dot`` operations in the kernel.
        mmas: Matrix calls in the compiled form; fewer than ``dots`` is a miscompile.
        pipelined: The loop around the matrix calls keeps several tiles in flight, so that cube
            and vector cores work at the same time.
        pipeline_depth: How many; 1 is no pipeline.
        rows_shared: Each of the two vector cores works on half of the rows; otherwise both do
            the same work.
        relays: Operand tiles that are only loaded, yet take a detour through a vector core.
        scalar_loops: Loops that move or compute one row or one element per step.
        retries: What the compiler switched off, without failing, to fit the memories.
        seconds: Wall time of lowering and compile.
        hivm_path: The final HIVM text; None if there is none.
        ir_path: Directory with TTIR, Linalg, HIVM and the compiler's log.
        diagnostics: Why ``ok`` is False, and what else the compiler warned about.
    """

    ok: bool
    kernel: str
    target: str
    arch: str
    core: str
    ub_bytes: int
    ub_limit: int
    l1_bytes: int
    l1_limit: int
    l0c_bytes: int
    l0c_limit: int
    dots: int
    mmas: int
    pipelined: bool
    pipeline_depth: int
    rows_shared: bool
    relays: int
    scalar_loops: int
    retries: tuple[str, ...]
    seconds: float
    hivm_path: str | None
    ir_path: str
    diagnostics: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self) | {
            "retries": list(self.retries),
            "diagnostics": list(self.diagnostics),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CompileReport:
        """Rebuild a report from :meth:`to_dict`."""
        known = {field.name: values[field.name] for field in fields(cls)}
        known["retries"] = tuple(known["retries"])
        known["diagnostics"] = tuple(known["diagnostics"])
        return cls(**known)

    def __str__(self) -> str:
        """One line for a terminal."""
        if not self.core:
            return f"{self.kernel} {self.target}: does not compile: {'; '.join(self.diagnostics)}"
        memories = "/".join(
            f"{used / 1024:.0f}" for used in (self.ub_bytes, self.l1_bytes, self.l0c_bytes)
        )
        facts = [
            "ok" if self.ok else "NOT OK",
            self.core,
            f"UB/L1/L0C {memories} KiB",
            f"dots {self.dots} mma {self.mmas}",
            f"depth {self.pipeline_depth}" if self.pipelined else "not pipelined",
            "rows shared" if self.rows_shared else "rows not shared",
            f"relays {self.relays}",
            f"scalar loops {self.scalar_loops}",
            f"{self.seconds:.1f} s",
        ]
        tail = f" [{'; '.join(self.diagnostics)}]" if self.diagnostics else ""
        return f"{self.kernel} {self.target}: {', '.join(facts)}{tail}"
