"""The disk cache: a second process, damage, pruning, and what a key depends on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from fa_triton.launch import runner
from fa_triton.native import cache
from fa_triton.native import kernel as native
from fa_triton.native.fingerprint import fingerprint

MODULE = """
import time
start = time.perf_counter()
import torch
import triton
import triton.language as tl
import llvmlite.binding
from fa_triton.launch import runner
from fa_triton.native import kernel as native

SCALE = tl.constexpr({scale})


@triton.jit
def scaled(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.load(X + o) * SCALE)


x, y = torch.randn(64), torch.zeros(64)
start = time.perf_counter()
runner(scaled)[1](x, y, BLOCK=64)
seconds = time.perf_counter() - start
assert torch.equal(y, x * {scale})
statistics = native.statistics()
print(statistics.compiled, statistics.cache_hits, seconds)
"""


def run_module(folder: Path, scale: float) -> tuple[int, int, float]:
    script = folder / "scaled.py"
    script.write_text(textwrap.dedent(MODULE).format(scale=scale))
    environment = dict(os.environ, FA_TRITON_CACHE_DIR=str(folder / "cache"))
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    output = subprocess.run(
        [sys.executable, str(script)], env=environment, check=True, capture_output=True, text=True
    ).stdout.split()
    return int(output[0]), int(output[1]), float(output[2])


@pytest.mark.slow
def test_a_second_process_finds_the_variant(tmp_path: Path) -> None:
    assert run_module(tmp_path, 2.0)[:2] == (1, 0)
    compiled, hits, seconds = run_module(tmp_path, 2.0)
    assert (compiled, hits) == (0, 1)
    assert seconds < 0.5
    # the kernel's own source is the same, a constant it reads is not
    assert run_module(tmp_path, 3.0)[:2] == (1, 0)


@triton.jit
def increment(X, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(X + o, tl.load(X + o) + 1.0)


def test_a_damaged_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    x = torch.zeros(32)
    runner(increment)[1](x, BLOCK=32)
    (entry,) = tmp_path.rglob("*.variant")
    good = entry.read_bytes()
    assert cache.load(entry.stem) is not None
    for bad in (good[:-1], b"", good[:30], b"\0" * 100):
        entry.write_bytes(bad)
        assert cache.load(entry.stem) is None


def test_an_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "file"))
    x = torch.zeros(16)
    runner(increment)[1](x, BLOCK=16)
    assert (x == 1).all()


def test_pruning_drops_what_was_used_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    for number in range(6):
        cache.store(f"{number:064x}", cache.Entry({}, b"x" * 100))
        os.utime(tmp_path / "native" / f"{number:064x}.variant", (number, number))
    cache.load(f"{0:064x}")
    assert cache.prune(max_entries=3) == 3
    left = sorted(int(path.stem, 16) for path in tmp_path.rglob("*.variant"))
    assert left == [0, 4, 5]
    assert cache.prune(max_bytes=0) == 3
    assert not list(tmp_path.rglob(".partial-*"))


def test_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.cache_directory() == Path("/somewhere/fa_triton")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_directory() == Path.home() / ".cache" / "fa_triton"


@triton.jit
def _square(x):
    return x * x


FACTOR = tl.constexpr(2.0)


@triton.jit
def uses_square(X, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(X + o, _square(tl.load(X + o)) * FACTOR)


def _fresh_fingerprint() -> str:
    fingerprint.cache_clear()
    return fingerprint(uses_square)


def test_fingerprint_covers_callees_and_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _fresh_fingerprint()
    assert _fresh_fingerprint() == first
    monkeypatch.setitem(uses_square.__globals__, "FACTOR", tl.constexpr(3.0))
    assert _fresh_fingerprint() != first
    monkeypatch.undo()
    source = _square.src
    _square.src = source.replace("x * x", "x * x * x")
    changed = _fresh_fingerprint()
    _square.src = source
    assert changed != first
    assert _fresh_fingerprint() == first


def test_variants_are_shared_between_equal_specialisations() -> None:
    before = native.statistics()
    x = torch.zeros(64)
    runner(increment)[1](x, BLOCK=64)
    runner(increment)[1](x.clone(), BLOCK=64)
    after = native.statistics()
    assert after.compiled + after.cache_hits - before.compiled - before.cache_hits == 1
