"""Tiles read in place: only where nothing can tell the difference."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from fa_triton.launch import runner
from fa_triton.native import compiler, object_code
from fa_triton.native.direct_loads import read_tiles_in_place
from tests.native.kernels_dot import CASES
from tests.native.test_masked_lanes import GuardedPages

DIM = 32


@triton.jit
def scores(Q, K, S, n, BLOCK: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr):
    r = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    q = tl.load(Q + r[:, None] * DIM + d[None, :])
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for s in range(0, n, BLOCK):
        c = s + tl.arange(0, BLOCK)
        k = tl.load(K + c[:, None] * DIM + d[None, :], mask=c[:, None] < n, other=0.0)
        total += tl.dot(q, tl.trans(k))
    tl.store(S + r[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], total)


@pytest.mark.parametrize("rows", [4, 16])
@pytest.mark.parametrize("n", [64, 70, 95, 1])
def test_the_last_tile_stays_inside(n: int, rows: int) -> None:
    q, s = torch.randn(rows, DIM), torch.zeros(rows, 32)
    k = GuardedPages(3).last((n, DIM))
    k.normal_()
    runner(scores)[1](q, k, s, n, BLOCK=32, DIM=DIM, ROWS=rows)
    padded = torch.zeros(-(-n // 32) * 32, DIM)
    padded[:n] = k
    expected = (q @ padded.view(-1, 32, DIM).sum(0).T).float()
    torch.testing.assert_close(s, expected, rtol=1e-4, atol=1e-4)


@triton.jit
def load_store_use(X, Y, Z, n, SIDE: tl.constexpr):
    a = tl.arange(0, SIDE)
    o = a[:, None] * SIDE + a[None, :]
    for i in range(0, n):
        x = tl.load(X + i * SIDE * SIDE + o)
        tl.store(X + i * SIDE * SIDE + o, x * 0.0)
        tl.store(Z + i * SIDE * SIDE + o, tl.dot(tl.load(Y + o), x))


def test_a_tile_that_is_overwritten_before_its_use() -> None:
    x, y, z = torch.randn(3, 16, 16), torch.randn(16, 16), torch.zeros(3, 16, 16)
    expected = y @ x
    runner(load_store_use)[1](x, y, z, 3, SIDE=16)
    torch.testing.assert_close(z, expected, rtol=1e-5, atol=1e-5)
    assert (x == 0).all()


@triton.jit
def use_the_previous_tile(X, Y, Z, n, SIDE: tl.constexpr):
    a = tl.arange(0, SIDE)
    o = a[:, None] * SIDE + a[None, :]
    y = tl.load(Y + o)
    before = tl.load(X + o)
    total = tl.zeros([SIDE, SIDE], tl.float32)
    for i in range(1, n):
        x = tl.load(X + i * SIDE * SIDE + o)
        total += tl.dot(y, before)
        before = x
    tl.store(X + (n - 1) * SIDE * SIDE + o, total)
    tl.store(Z + o, tl.dot(y, before))


def test_a_tile_that_is_carried_to_the_next_step() -> None:
    x, y, z = torch.randn(4, 16, 16), torch.randn(16, 16), torch.zeros(16, 16)
    expected, total = y @ x[3], (y @ x[:3]).sum(0)
    runner(use_the_previous_tile)[1](x, y, z, 4, SIDE=16)
    torch.testing.assert_close(z, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x[3], total, rtol=1e-5, atol=1e-5)


SOURCE = """
func.func @f() {{
  scf.for %i = %a to %b step %c {{
    %alloc = memref.alloc() : memref<8x16xbf16>
    memref.copy %x, %alloc : memref<8x16xbf16, strided<[{stride}], offset: ?>> to memref<8x16xbf16>
    %1 = bufferization.to_tensor %alloc restrict writable : memref<8x16xbf16>
    %2 = {use}
    {after}
  }}
  memref.store %v, %y[%i] : memref<?xf32>
}}
"""
WIDEN = "arith.extf %1 : tensor<8x16xbf16> to tensor<8x16xf32>"


@pytest.mark.parametrize(
    ("stride", "use", "after", "in_place"),
    [
        ("?, 1", WIDEN, "", True),
        ("?, ?", WIDEN, "", False),
        ("?, 1", WIDEN, "memref.store %v, %y[%i] : memref<?xf32>", False),
        ("?, 1", "arith.addf %1, %1 : tensor<8x16xbf16>", "", False),
        ("?, 1", WIDEN, "scf.yield %1 : tensor<8x16xbf16>", False),
    ],
)
def test_conditions(stride: str, use: str, after: str, in_place: bool) -> None:
    text = SOURCE.format(stride=stride, use=use, after=after)
    assert ("memref.copy" not in read_tiles_in_place(text)) is in_place


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_narrow_vectors(case: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a CPU with 256-bit vectors, which this one runs too if it is an x86."""
    own = object_code.host_cpu()
    if "+avx2" not in own.features.split(","):
        pytest.skip("needs AVX2")
    kept = [f for f in own.features.split(",") if "avx512" not in f and "amx" not in f]
    narrow = object_code.HostCpu("haswell", ",".join([*kept, "-avx512f", "-evex512"]))
    monkeypatch.setattr(object_code, "host_cpu", lambda: narrow)
    monkeypatch.setattr(compiler, "host_cpu", lambda: narrow)
    compiler._environment_key.cache_clear()
    torch.manual_seed(0)
    case.make().check(case.kernel)
