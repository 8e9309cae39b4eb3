"""Where a result comes from: device, versions of the toolchain, commit, command, date."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

TOOLCHAIN = ("torch", "triton-ascend", "ascendnpu-ir", "llvmlite", "numpy")
ROOT = Path(__file__).resolve().parent.parent


CPUINFO = Path("/proc/cpuinfo")

# Keep torch's libraries from AMX, the matrix unit of some processors.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}


def _cpuinfo(*names: str) -> str:
    if CPUINFO.exists():
        for line in CPUINFO.read_text().splitlines():
            if line.startswith(names):
                return line.partition(":")[2].strip()
    return ""


def cpu_name() -> str:
    """Return the processor's name as the system tells it."""
    return _cpuinfo("model name", "Model") or platform.processor() or platform.machine()


def has_amx() -> bool:
    """Whether the processor multiplies bf16 matrices in a unit of their own."""
    return "amx_bf16" in _cpuinfo("flags").split()


def amx_is_disabled() -> bool:
    """Whether this process runs with :data:`WITHOUT_AMX`."""
    return all(os.environ.get(name) == value for name, value in WITHOUT_AMX.items())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def command_line() -> str:
    """Return the command that runs, as a reader would type it."""
    return shlex.join(["python", "-m", "perf.run", *sys.argv[1:]])


def provenance(command: str) -> dict[str, object]:
    """Describe this run, for every line of its results."""
    changed = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return {
        "device": cpu_name(),
        "toolchain": {name: _version(name) for name in TOOLCHAIN}
        | {"python": f"{sys.version_info.major}.{sys.version_info.minor}"},
        "commit": _git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else ""),
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }
