"""Run the device compiler on Linalg text and keep what it says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fa_triton.compile.options import compiler_flags
from fa_triton.compile.toolchain import compiler, last_step_directory
from fa_triton.targets import Target

TIMEOUT_SECONDS = 300

# The A5 compiler lowers loops to branches before the HIVM text is written: whether a loop was
# pipelined and whether rows are shared shows after these passes only.
_A5_PASSES = ("cv-pipelining", "hivm-bind-sub-block")


@dataclass(frozen=True)
class Compiled:
    """Outcome of one run of the device compiler.

    Attributes:
        reached_last_step: The compiler came as far as assembling the device binary.
        hivm: Text of the final HIVM module; empty if there is none.
        log: Standard output and error.
        snapshots: IR after the passes named in it, by pass; the last one printed counts.
        command: What was run.
    """

    reached_last_step: bool
    hivm: str
    log: str
    snapshots: dict[str, list[str]]
    command: list[str]


def run(linalg: str, target: Target, options: Mapping[str, object], directory: Path) -> Compiled:
    """Compile a Linalg module.

    Args:
        linalg: Module text, with ``mix_mode`` as the device will see it.
        target: Device to compile for.
        options: Completed launch options.
        directory: Existing directory for input and temporary files.
    """
    source = directory / "kernel.linalg.mlir"
    source.write_text(linalg)
    last_step = directory / "last_step"
    command = [
        str(compiler(target)),
        str(source),
        f"--target={target.arch}",
        *compiler_flags(target, options),
        "--enable-hfusion-compile=true",
        "--enable-triton-kernel-compile=true",
        f"--save-temps={directory / 'stages'}",
        "-o",
        str(directory / "kernel.o"),
    ]
    if target.is_a5:
        command += [f"--mlir-print-ir-after={name}" for name in _A5_PASSES]
    else:
        command.append("--enable-hivm-compile=true")
    environment = dict(os.environ)
    environment["PATH"] = f"{last_step_directory()}{os.pathsep}{environment.get('PATH', '')}"
    environment["FA_TRITON_LAST_STEP"] = str(last_step)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            env=environment,
            check=False,
        )
        succeeded = done.returncode == 0
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        succeeded = False
        output = f"error: {command[0]} ran longer than {TIMEOUT_SECONDS} s"
    log, snapshots = _split_snapshots(output)
    hivm = directory / "stages" / "module.hivm.opt.mlir"
    return Compiled(
        reached_last_step=succeeded and last_step.exists() and hivm.exists(),
        hivm=hivm.read_text() if hivm.exists() else "",
        log=log,
        snapshots=snapshots,
        command=command,
    )


def _split_snapshots(output: str) -> tuple[str, dict[str, list[str]]]:
    """Separate the IR dumps in the compiler's output from its messages."""
    messages: list[str] = []
    snapshots: dict[str, list[str]] = {}
    current: list[str] | None = None
    name = ""
    for line in output.splitlines():
        if line.startswith("// -----// IR Dump After "):
            name = line[line.rindex("(") + 1 : line.rindex(")")]
            current = []
        elif current is not None:
            current.append(line)
            # A dump ends where its top-level region closes.
            if line.startswith("}"):
                snapshots.setdefault(name, []).append("\n".join(current))
                current = None
        elif line.strip():
            messages.append(line)
    return "\n".join(messages), snapshots
