"""Programs of a grid over a persistent pool of threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

THREADS_VARIABLE = "FA_TRITON_NUM_THREADS"

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def num_threads() -> int:
    """Threads a grid may use: ``FA_TRITON_NUM_THREADS``, else torch's.

    Raises:
        ValueError: The variable is no positive integer.
    """
    chosen = os.environ.get(THREADS_VARIABLE)
    if not chosen:
        return torch.get_num_threads()
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ValueError(f"`{THREADS_VARIABLE}` must be a positive integer, got {chosen!r}")
    return int(chosen)


def _executor(size: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < size:
        # A smaller pool ends by itself when its last user lets go of it.
        _pool = ThreadPoolExecutor(size, thread_name_prefix="fa_triton")
        _pool_size = size
    return _pool


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _pool_size
    _pool, _pool_size = None, 0


os.register_at_fork(after_in_child=_forget_pool)


def run_on_threads(work: Callable[[], None], threads: int) -> None:
    """Run ``work`` on this thread and on ``threads - 1`` others; it shares out itself.

    A helper that has not started when this thread runs out of work is cancelled, so a small grid
    does not wait for threads to wake up.
    """
    pool = _executor(threads - 1)
    helpers = [pool.submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()
