"""Compile a kernel for an Ascend target and report what became of it. No device is needed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fa_triton.compile import ascend_compiler, cache, hivm, mix_mode, ttir
from fa_triton.compile.front_end import lower, specialise
from fa_triton.compile.options import launch_options
from fa_triton.compile.report import CompileReport
from fa_triton.compile.source import source_hash
from fa_triton.compile.toolchain import require
from fa_triton.native.errors import LoweringError
from fa_triton.targets import Target
from fa_triton.targets import target as find_target

_OVERFLOW = re.compile(r"\w+ overflow, requires \d+ bits while \d+ bits available")
_NOTE = re.compile(r"\[NOTE\] (.*)")
_REVERT = re.compile(r"\[hivm-bind-sub-block\] revert.*")
_NOISE = re.compile(r"Failed to detect hivmc version|Allocated \w+ size")


def compile_for(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    target: str | Target,
    options: Mapping[str, object] | None = None,
) -> CompileReport:
    """Compile a kernel for an Ascend target with the compiler that ships as a Python package.

    Everything up to the device assembler runs; the result is kept on disk, so that a second call
    costs nothing.

    Args:
        kernel: A ``@triton.jit`` function.
        signature: Triton type of each run-time argument (``"*bf16"``, ``"i32"``, ``"fp32"``),
            optionally with ``":16"`` (divisible by 16) or ``":1"`` (equal to 1), as triton
            specialises on them at launch.
        constants: Values of the ``constexpr`` arguments; None for absent tensors.
        target: ``A2``, ``A3``, ``A5`` or a device name.
        options: Launch options such as ``multibuffer`` or ``tile_mix_vector_loop``.

    Returns:
        The report. A kernel that does not compile is a report that is not ok.

    Raises:
        ValueError: Unknown target, argument or option.
        RuntimeError: The compiler packages are missing or have another version.
    """
    require()
    device = find_target(target) if isinstance(target, str) else target
    spec = specialise(kernel, signature, constants)
    chosen = launch_options(device, options)
    if device.is_a5:
        mix_mode.install()
    key = _key(kernel, signature, constants, device, chosen)
    known = cache.load(key)
    if known is not None:
        return known
    directory = cache.scratch()
    started = time.perf_counter()
    try:
        report = _compile(kernel, spec, device, chosen, directory, cache.final_directory(key))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    report = replace(report, seconds=round(time.perf_counter() - started, 3))
    cache.store(key, report, directory)
    return report


def describe_inputs(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    device: Target,
    options: Mapping[str, object],
) -> dict[str, Any]:
    """Collect all that a compile depends on, as plain JSON types."""
    return {
        "kernel": source_hash(kernel),
        "signature": dict(signature),
        "constants": {name: repr(value) for name, value in constants.items()},
        "arch": device.arch,
        "options": {name: repr(value) for name, value in sorted(options.items())},
        "toolchain": require(),
    }


def _key(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    device: Target,
    options: Mapping[str, object],
) -> str:
    inputs = describe_inputs(kernel, signature, constants, device, options)
    inputs |= {"reader": _own_source(), "mix_mode_kept": mix_mode.is_kept(), "name": device.name}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:40]


@lru_cache(maxsize=1)
def _own_source() -> str:
    """Hash this package: an edited reader must not return old readings."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compile(
    kernel: Any,
    spec: Any,
    device: Target,
    options: Mapping[str, object],
    directory: Path,
    final: Path,
) -> CompileReport:
    failed = CompileReport(
        ok=False,
        kernel=kernel.__name__,
        target=device.name,
        arch=device.arch,
        core="",
        ub_bytes=0,
        ub_limit=device.ub_bytes,
        l1_bytes=0,
        l1_limit=device.l1_bytes,
        l0c_bytes=0,
        l0c_limit=device.l0c_bytes,
        dots=0,
        mmas=0,
        pipelined=False,
        pipeline_depth=1,
        rows_shared=False,
        relays=0,
        scalar_loops=0,
        retries=(),
        seconds=0.0,
        hivm_path=None,
        ir_path=str(final),
        diagnostics=(),
    )
    try:
        lowered = lower(kernel, spec, device, options)
    except LoweringError as error:
        (directory / "kernel.ttir.mlir").write_text(error.ir)
        return replace(failed, diagnostics=(str(error),))
    linalg = mix_mode.as_compiled(lowered.linalg)
    (directory / "kernel.ttir.mlir").write_text(lowered.ttir)
    (directory / "kernel.linalg.mlir").write_text(linalg)
    done = ascend_compiler.run(linalg, device, options, directory)
    (directory / "compiler.log").write_text(f"{' '.join(done.command)}\n{done.log}\n")
    for name, texts in done.snapshots.items():
        (directory / f"after-{name}.mlir").write_text(texts[-1])
    source = ttir.read(lowered.ttir, linalg)
    retries = _retries(done.log)
    failed = replace(failed, dots=source.dots, retries=retries)
    if not done.reached_last_step:
        return replace(failed, diagnostics=_failure(done.log))
    (directory / "stages" / "module.hivm.opt.mlir").rename(directory / "kernel.hivm.mlir")
    (directory / "stages").rmdir()
    facts = hivm.read(done.hivm, done.snapshots, done.log, a5=device.is_a5)
    problems = []
    if facts.mmas != source.dots:
        problems.append(
            f"miscompiled: {source.dots} tt.dot became {facts.mmas} matrix calls; start a bare "
            "accumulator at tl.zeros or give the loop a run-time trip count"
        )
    problems += [f"miscompiled: {text}" for text in facts.misplaced]
    problems += [f"silent retry: {retry}" for retry in retries]
    remarks = [line for line in _remarks(done.log) if not any(line in p for p in problems)]
    return replace(
        failed,
        ok=not problems,
        core=facts.core,
        ub_bytes=facts.bytes_used["ub"],
        l1_bytes=facts.bytes_used["l1"],
        l0c_bytes=facts.bytes_used["l0c"],
        ub_limit=facts.bytes_limit.get("ub", device.ub_bytes),
        l1_limit=facts.bytes_limit.get("l1", device.l1_bytes),
        l0c_limit=facts.bytes_limit.get("l0c", device.l0c_bytes),
        mmas=facts.mmas,
        pipelined=facts.pipeline_depth > 1,
        pipeline_depth=facts.pipeline_depth,
        rows_shared=facts.rows_shared,
        relays=max(0, facts.handoffs - source.computed_operands),
        scalar_loops=max(facts.scalar_loops, source.discrete_loops),
        hivm_path=str(final / "kernel.hivm.mlir"),
        diagnostics=tuple(problems + remarks),
    )


def _failure(log: str) -> tuple[str, ...]:
    """Say why a compile failed, most telling line first."""
    # The last one is what stands after the compiler's own retries.
    overflows = list(dict.fromkeys(reversed(_OVERFLOW.findall(log))))
    errors = [
        re.sub(r"^.*?error: ", "", line).strip()
        for line in log.splitlines()
        if re.search(r"error:|Assertion|LLVM ERROR|PLEASE submit", line)
    ]
    unique = [line for line in dict.fromkeys(errors) if not any(o in line for o in overflows)]
    return tuple((overflows + unique)[:4]) or ("the compiler failed without a diagnostic",)


def _retries(log: str) -> tuple[str, ...]:
    """List what the compiler switched off, from its closing summary if there is one."""
    notes = list(dict.fromkeys(note[1].strip() for note in _NOTE.finditer(log)))
    return tuple([note for note in notes if note.startswith("Due to")] or notes)


def _remarks(log: str) -> list[str]:
    lines = [match[0].strip() for match in _REVERT.finditer(log)]
    lines += [line.strip() for line in log.splitlines() if "warning:" in line.lower()]
    short = [re.sub(r"^.*?warning: ", "warning: ", line)[:200] for line in lines]
    return [line for line in dict.fromkeys(short) if not _NOISE.search(line)][:6]
