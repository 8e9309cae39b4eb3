"""Where a result comes from: device, versions of the toolchain, commit, command, date."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

TOOLCHAIN = ("torch", "triton-ascend", "ascendnpu-ir", "llvmlite", "numpy")
ROOT = Path(__file__).resolve().parent.parent


def cpu_name() -> str:
    """Return the processor's name as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


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
