"""Keep the attribute by which the A5 compiler chooses its mixed cube/vector pipeline.

triton-ascend lowers a kernel to Linalg with ``mix_mode = "mix"`` on the function. Version 3.2.0
deletes the attribute before the compiler sees it. A2 and A3 do not care. The A5 compiler then
falls back, without a word, to a form in which both vector cores compute the same rows and the
key/value loop is not pipelined. Later versions keep the attribute.

Triton's own disk cache does not see the difference: give A5 runs a cache folder of their own.
"""

from __future__ import annotations

import functools
from typing import Any

_PROBE = (
    'func.func @probe(%arg0: memref<?xi8>) attributes {a = 1, mix_mode = "mix", '
    'parallel_mode = "simd"}'
)


def _compiler_module() -> Any:
    import triton.backends.ascend.compiler as compiler

    return compiler


def is_kept() -> bool:
    """Whether triton-ascend, as it stands in this process, keeps ``mix_mode``."""
    return "mix_mode" in _compiler_module()._parse_linalg_metadata(_PROBE, {})[0]


def install() -> bool:
    """Make triton-ascend keep ``mix_mode``.

    Returns:
        True if something had to be changed; False where the attribute is kept already (later
        versions, or a second call).
    """
    compiler = _compiler_module()
    if is_kept():
        return False
    original = compiler._parse_linalg_metadata

    @functools.wraps(original)
    def keep_mix_mode(linalg: str, metadata: dict) -> tuple[str, dict]:
        return linalg, original(linalg, metadata)[1]

    compiler._parse_linalg_metadata = keep_mix_mode
    return True


def uninstall() -> bool:
    """Undo :func:`install`.

    Returns:
        True if something had to be changed.
    """
    compiler = _compiler_module()
    original = getattr(compiler._parse_linalg_metadata, "__wrapped__", None)
    if original is None:
        return False
    compiler._parse_linalg_metadata = original
    return True


def as_compiled(linalg: str) -> str:
    """Return the Linalg text as triton-ascend hands it to the device compiler."""
    return _compiler_module()._parse_linalg_metadata(linalg, {})[0]
