"""Programs over threads, and memory over many launches."""

from __future__ import annotations

import os
import resource
import threading

import pytest
import torch
import triton
import triton.language as tl

from fa_triton.launch import runner
from fa_triton.native import threads
from fa_triton.native.compiler import compile_variant
from tests.native.kernels_memory import atomic_sum


@triton.jit
def work(X, Y, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    x = tl.load(X + p * BLOCK + o)
    for _ in range(n):
        x = x * 0.999 + 0.001
    tl.store(Y + p * BLOCK + o, x)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Thread counts that grids were started with."""
    counts: list[int] = []
    original = threads.run_on_threads

    def spy(function: object, count: int) -> None:
        counts.append(count)
        original(function, count)

    monkeypatch.setattr("fa_triton.native.kernel.run_on_threads", spy)
    return counts


def launch(programs: int) -> None:
    x = torch.zeros(programs, 64)
    y = torch.full_like(x, float("nan"))
    runner(work)[(programs,)](x, y, 10, BLOCK=64)
    assert not y.isnan().any()
    assert torch.equal(y, y[:1].expand_as(y))


def test_the_variable_decides(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.THREADS_VARIABLE, "3")
    launch(100)
    monkeypatch.setenv(threads.THREADS_VARIABLE, "1")
    launch(100)
    assert started == [3]


def test_torch_decides_otherwise(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(threads.THREADS_VARIABLE, raising=False)
    torch.set_num_threads(2)
    launch(100)
    torch.set_num_threads(1)
    launch(100)
    assert started == [2]


def test_small_grids_use_no_more_threads_than_programs(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(threads.THREADS_VARIABLE, "8")
    launch(1)
    launch(2)
    assert started == [2]


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_bad_thread_counts(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.THREADS_VARIABLE, value)
    with pytest.raises(ValueError, match="`FA_TRITON_NUM_THREADS` must be a positive integer"):
        threads.num_threads()


def test_programs_really_run_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.THREADS_VARIABLE, "2")
    x = torch.zeros(64, 1024)
    y = torch.zeros_like(x)
    # compiling is the work of this thread alone
    runner(work)[(64,)](x, y, 1, BLOCK=1024)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_utime
    total = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    runner(work)[(64,)](x, y, 20000, BLOCK=1024)
    own = resource.getrusage(resource.RUSAGE_THREAD).ru_utime - before
    everyone = resource.getrusage(resource.RUSAGE_SELF).ru_utime - total
    assert own < 0.9 * everyone


def test_atomics_run_on_one_thread(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.THREADS_VARIABLE, "4")
    x, out = torch.ones(3200, 64), torch.zeros(64)
    count = torch.zeros(1, dtype=torch.int32)
    runner(atomic_sum)[(100,)](x, out, count, 3200, 50, BLOCK=32, DIM=64)
    assert count.item() == 100
    assert out[:50].unique().tolist() == [3200.0]
    assert started == []


def test_launches_from_several_python_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.THREADS_VARIABLE, "2")
    compiled: list[object] = []

    def counting(*args: object) -> object:
        compiled.append(args)
        return compile_variant(*args)

    monkeypatch.setattr("fa_triton.native.kernel.compile_variant", counting)
    failures: list[BaseException] = []

    def body() -> None:
        try:
            for _ in range(20):
                launch(37)
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=body) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures
    assert len(compiled) == 1


def test_a_forked_child_starts_its_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.THREADS_VARIABLE, "2")
    launch(100)
    child = os.fork()
    if child == 0:
        launch(100)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_memory_stays_over_many_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.THREADS_VARIABLE, "2")
    x = torch.zeros(64, 64)
    y = torch.zeros_like(x)
    # compiling, the threads and their memory pools come once
    for _ in range(500):
        runner(work)[(64,)](x, y, 5, BLOCK=64)
    before = _resident_bytes()
    for _ in range(500):
        runner(work)[(64,)](x, y, 5, BLOCK=64)
    assert _resident_bytes() - before < 2**20
