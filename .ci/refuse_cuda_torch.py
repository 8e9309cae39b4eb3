"""Read a report of ``pip install --dry-run`` and refuse one that brings CUDA libraries."""

from __future__ import annotations

import json
import sys

MESSAGE = """\
error: pip would install a CUDA build of torch, several gigabytes that nothing here needs.
Name an index or a folder that has CPU builds (README, Install):
    make TORCH_PIP_ARGS='--index-url URL' ...     or     TORCH_PIP_ARGS='--find-links FOLDER'
or take the CUDA build all the same: make CUDA_TORCH=1 ...
"""


def main() -> int:
    """Return 1 if the report on stdin holds a package of NVIDIA's."""
    text = sys.stdin.read()
    if not text.strip():
        return 0
    names = [item["metadata"]["name"] for item in json.loads(text)["install"]]
    if any(name.startswith(("nvidia-", "cuda-", "triton")) for name in names):
        sys.stderr.write(MESSAGE)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
