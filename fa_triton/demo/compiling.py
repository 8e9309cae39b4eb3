"""What compiling kernels costs, where that is known."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

_NATIVE = "fa_triton.native.kernel"


def compile_seconds() -> float:
    """Seconds this process spent compiling kernels or loading them from the disk cache.

    Only the native CPU path counts them; 0 elsewhere.
    """
    if _NATIVE not in sys.modules:
        return 0.0
    from fa_triton.native.kernel import statistics

    found = statistics()
    return found.compile_seconds + found.load_seconds


def compiled_variants() -> tuple[int, int]:
    """Kernel variants compiled by this process, and loaded from the disk cache."""
    if _NATIVE not in sys.modules:
        return 0, 0
    from fa_triton.native.kernel import statistics

    found = statistics()
    return found.compiled, found.cache_hits


@contextlib.contextmanager
def announced_compiles(announce: Callable[[str], None]) -> Iterator[None]:
    """Call ``announce`` with a kernel's name whenever the native CPU path starts compiling it."""
    from fa_triton.native.kernel import CompileEvent, add_listener

    def listen(event: CompileEvent) -> None:
        if event.seconds is None:
            announce(event.kernel)

    remove = add_listener(listen)
    try:
        yield
    finally:
        remove()
