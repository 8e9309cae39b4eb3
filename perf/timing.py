"""Time several callables side by side, in turns, and keep the best of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Best times of one callable.

    Attributes:
        cpu_ms: CPU time of all threads of the process, milliseconds.
        wall_ms: Elapsed time, milliseconds.
        rounds: How often it was called.
    """

    cpu_ms: float
    wall_ms: float
    rounds: int


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set torch's thread count, which the native path takes too, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compare(
    calls: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 2
) -> dict[str, Timing]:
    """Call every candidate once per round, in turns, so that all meet the same disturbances.

    Args:
        calls: Candidates by name.
        rounds: Timed calls of each.
        warm_up: Calls of each before that.

    Returns:
        The best CPU time and the best elapsed time of each candidate.
    """
    for call in calls.values():
        for _ in range(warm_up):
            call()
    cpu = dict.fromkeys(calls, float("inf"))
    wall = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            cpu_start, wall_start = time.process_time(), time.perf_counter()
            call()
            cpu_end, wall_end = time.process_time(), time.perf_counter()
            cpu[name] = min(cpu[name], cpu_end - cpu_start)
            wall[name] = min(wall[name], wall_end - wall_start)
    return {name: Timing(1e3 * cpu[name], 1e3 * wall[name], rounds) for name in calls}
