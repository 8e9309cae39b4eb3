"""Modes of the CPU path, and what a device looks like to the launchers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from fa_triton.device import CPU_MODE_VARIABLE, cpu_mode, device_info

INTERPRETED = """
import torch
from fa_triton.launch import runner
import triton
import triton.language as tl

@triton.jit
def attend(Q, K, V, OUT, n, scale, DIM: tl.constexpr, ROWS: tl.constexpr):
    r = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    q = tl.load(Q + r[:, None] * DIM + d[None, :])
    high = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for s in range(0, n, ROWS):
        c = s + r
        k = tl.load(K + c[:, None] * DIM + d[None, :], mask=c[:, None] < n, other=0.0)
        x = tl.where(c[None, :] < n, tl.dot(q, tl.trans(k)) * scale, -1e30)
        higher = tl.maximum(high, tl.max(x, 1))
        p = tl.exp(x - higher[:, None])
        alpha = tl.exp(high - higher)
        total = total * alpha + tl.sum(p, 1)
        v = tl.load(V + c[:, None] * DIM + d[None, :], mask=c[:, None] < n, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        high = higher
    tl.store(OUT + r[:, None] * DIM + d[None, :], (acc / total[:, None]).to(OUT.dtype.element_ty))

torch.manual_seed(0)
for dtype, limit in ((torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
    q, k, v = torch.randn(16, 32), torch.randn(40, 32), torch.randn(40, 32)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    o = torch.zeros_like(q)
    runner(attend)[lambda meta: (1,)](q, k, v, o, 40, 32**-0.5, DIM=32, ROWS=16, num_warps=4)
    q, k, v = (x.double()[None] for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    error = (o.double() - expected[0]).abs().max().item()
    assert error < limit, (dtype, error)
print("done")
"""


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    file = folder / "script.py"
    file.write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_interpreter_mode(tmp_path: Path) -> None:
    result = run(INTERPRETED, tmp_path, FA_TRITON_CPU="interpreter")
    assert result.stdout.split() == ["done"], result.stderr


@pytest.mark.slow
def test_interpreter_mode_after_triton_was_imported(tmp_path: Path) -> None:
    result = run("import triton\n" + INTERPRETED, tmp_path, FA_TRITON_CPU="interpreter")
    assert "RuntimeError: `TRITON_INTERPRET` must be 1 before triton is imported" in result.stderr


@pytest.mark.slow
def test_interpreted_kernels_in_native_mode(tmp_path: Path) -> None:
    result = run(INTERPRETED, tmp_path, FA_TRITON_CPU="native", TRITON_INTERPRET="1")
    assert "RuntimeError: `FA_TRITON_CPU` must be interpreter" in result.stderr


@pytest.mark.parametrize("mode", ["native", "interpreter", "reference"])
def test_cpu_modes(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_MODE_VARIABLE, mode)
    assert cpu_mode() == mode


def test_cpu_mode_is_native_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CPU_MODE_VARIABLE, raising=False)
    assert cpu_mode() == "native"


def test_unknown_cpu_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_MODE_VARIABLE, "fast")
    with pytest.raises(ValueError, match="`FA_TRITON_CPU` must be native, interpreter or ref"):
        cpu_mode()


def test_cpu_device() -> None:
    torch.set_num_threads(2)
    info = device_info(torch.device("cpu"))
    assert (info.kind, info.num_aic, info.num_aiv) == ("cpu", 2, 4)
    torch.set_num_threads(1)
    assert device_info(torch.device("cpu")).num_aic == 1


def test_unknown_device() -> None:
    with pytest.raises(NotImplementedError, match="`device` must be npu, cuda or cpu, got meta"):
        device_info(torch.device("meta"))
