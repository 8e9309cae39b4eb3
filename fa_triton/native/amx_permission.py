"""Linux keeps the tile registers of AMX from a process until it asks for them."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

_SYS_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


@functools.lru_cache(maxsize=1)
def allow_tiles() -> bool:
    """Ask for the tile registers, for all threads of this process; False if refused."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.argtypes = [ctypes.c_long] * 3
    return syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0
