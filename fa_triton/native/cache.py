"""Compiled variants on disk, one file per variant."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "FA_TRITON_CACHE_DIR"
MAX_ENTRIES = 4096
MAX_BYTES = 512 * 2**20

_MAGIC = b"fa_triton native 1\n"


@dataclass(frozen=True)
class Entry:
    """One compiled variant: what its call needs, and its object code."""

    header: Mapping[str, Any]
    object_code: bytes


def cache_directory() -> Path:
    """Return the cache directory: ``FA_TRITON_CACHE_DIR`` or the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fa_triton"


def _entries() -> Path:
    return cache_directory() / "native"


def _path(key: str) -> Path:
    return _entries() / f"{key}.variant"


def load(key: str) -> Entry | None:
    """Read a variant; None when it is absent or damaged.

    Args:
        key: Hexadecimal variant key.
    """
    path = _path(key)
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    if not data.startswith(_MAGIC):
        return None
    line, _, object_code = data[len(_MAGIC) :].partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        return None
    if header.get("sha256") != hashlib.sha256(object_code).hexdigest():
        return None
    return Entry(header, object_code)


def store(key: str, entry: Entry) -> None:
    """Write a variant: complete or not at all. A cache that cannot be written is no error."""
    header = dict(entry.header, sha256=hashlib.sha256(entry.object_code).hexdigest())
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + json.dumps(header).encode() + b"\n" + entry.object_code)
        os.replace(partial, path)
    except OSError:
        return
    prune()


def prune(max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> int:
    """Drop the variants used longest ago until both limits hold.

    Returns:
        Number of files removed.
    """
    files = []
    for path in _entries().glob("*.variant"):
        try:
            status = path.stat()
        except OSError:
            continue
        files.append((status.st_mtime, status.st_size, path))
    files.sort(key=lambda item: item[0], reverse=True)
    total = removed = 0
    for count, (_, size, path) in enumerate(files, start=1):
        total += size
        if count > max_entries or total > max_bytes:
            path.unlink(missing_ok=True)
            removed += 1
    return removed
