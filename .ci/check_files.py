"""Small checks of the files git knows: what pre-commit's stock hooks do, without the network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 2_000_000
CONFLICT_MARKERS = ("<" * 7 + " ", ">" * 7 + " ")
# Test data that is kept as it came.
VERBATIM_SUFFIXES = {".mlir", ".png"}


def known_files() -> list[Path]:
    """Return all tracked files and untracked ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return sorted(p for p in paths if p.is_file() and not p.is_symlink())


def faults(path: Path) -> Iterator[str]:
    """Yield what is wrong with one file."""
    data = path.read_bytes()
    if len(data) > MAX_BYTES:
        yield f"is larger than {MAX_BYTES} bytes"
    if path.suffix in VERBATIM_SUFFIXES:
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield "is not UTF-8"
        return
    if data and not data.endswith(b"\n"):
        yield "does not end with a newline"
    if data.endswith(b"\n\n"):
        yield "ends with an empty line"
    if "\r" in text:
        yield "has carriage returns"
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip() and path.suffix not in {".jsonl"}:
            yield f"line {number} ends with a blank"
        if line.startswith(CONFLICT_MARKERS):
            yield f"line {number} is a merge conflict marker"
    try:
        if path.suffix == ".json":
            json.loads(text)
        elif path.suffix == ".jsonl":
            for line in text.splitlines():
                json.loads(line)
        elif path.suffix == ".toml":
            tomllib.loads(text)
        elif path.suffix == ".py":
            compile(text, str(path), "exec")
    except (ValueError, SyntaxError) as error:
        yield f"cannot be parsed: {error}"


def main() -> int:
    """Report all faults; the exit status is 1 if there is one."""
    found = [f"{p.relative_to(ROOT)}: {fault}" for p in known_files() for fault in faults(p)]
    sys.stderr.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
