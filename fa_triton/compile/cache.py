"""Finished compiles on disk: one directory with the report and all texts per compile."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from fa_triton.compile.report import CompileReport
from fa_triton.native.cache import cache_directory

# More than one full run of all shipped variants; about 300 KiB each.
MAX_ENTRIES = 6144
_REPORT = "report.json"


def _root() -> Path:
    return cache_directory() / "compile" / "entries"


def load(key: str) -> CompileReport | None:
    """Read a report; None if it is absent or damaged.

    Args:
        key: Hexadecimal key of the compile.
    """
    path = _root() / key / _REPORT
    try:
        report = CompileReport.from_dict(json.loads(path.read_text()))
        os.utime(path.parent)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return report


def scratch() -> Path:
    """Make a directory to compile in, on the file system of the cache."""
    _root().mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=".partial-", dir=_root()))


def final_directory(key: str) -> Path:
    """Say where the files of a compile will lie."""
    return _root() / key


def store(key: str, report: CompileReport, directory: Path) -> None:
    """Publish a finished compile: complete or not at all.

    Args:
        key: Hexadecimal key of the compile.
        report: Its report, which names files in ``final_directory(key)``.
        directory: Result of :func:`scratch`, with all files; moved away.
    """
    (directory / _REPORT).write_text(json.dumps(report.to_dict(), indent=1))
    destination = final_directory(key)
    for _ in range(2):
        try:
            directory.replace(destination)
            break
        except OSError:
            # Another process was faster, or a damaged entry is in the way.
            if load(key) is not None:
                shutil.rmtree(directory, ignore_errors=True)
                break
            shutil.rmtree(destination, ignore_errors=True)
    prune()


def prune(max_entries: int = MAX_ENTRIES) -> int:
    """Drop the compiles used longest ago.

    Returns:
        Number of directories removed.
    """
    entries = []
    for path in _root().glob("[0-9a-f]*"):
        try:
            entries.append((path.stat().st_mtime, path))
        except OSError:
            continue
    entries.sort(reverse=True)
    for _, path in entries[max_entries:]:
        shutil.rmtree(path, ignore_errors=True)
    return max(0, len(entries) - max_entries)
