"""Reductions, scans and re-arrangements."""

import torch
import triton
import triton.language as tl

from tests.native.catalogue import Run, catalogue

CASES, case = catalogue()
N = 64


@triton.jit
def cumsum_1d(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.cumsum(tl.load(X + o), 0))


@case(cumsum_1d)
def cumsum_of_a_vector():
    x, y = torch.randn(N), torch.zeros(N)
    return Run((x, y), [y], [x.cumsum(0)], {"BLOCK": N}, tolerance=1e-4)


@triton.jit
def cumsum_2d(X, Y, ROWS: tl.constexpr, COLS: tl.constexpr, AXIS: tl.constexpr, BACK: tl.constexpr):
    o = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(Y + o, tl.cumsum(tl.load(X + o), AXIS, reverse=BACK))


@case(cumsum_2d)
def cumsum_down_the_columns():
    x, y = torch.randn(N, 32), torch.zeros(N, 32)
    meta = {"ROWS": N, "COLS": 32, "AXIS": 0, "BACK": False}
    return Run((x, y), [y], [x.cumsum(0)], meta, tolerance=1e-4)


@case(cumsum_2d)
def cumsum_backwards_along_the_rows():
    x, y = torch.randn(32, N), torch.zeros(32, N)
    meta = {"ROWS": 32, "COLS": N, "AXIS": 1, "BACK": True}
    return Run((x, y), [y], [x.flip(1).cumsum(1).flip(1)], meta, tolerance=1e-4)


@triton.jit
def cumsum_in_loop(X, Y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    for s in range(0, n, BLOCK):
        tl.store(Y + s + o, tl.cumsum(tl.load(X + s + o), 0))


@case(cumsum_in_loop)
def cumsum_inside_a_loop():
    x, y = torch.randn(4, 32), torch.zeros(4, 32)
    return Run((x, y, 128), [y], [x.cumsum(1)], {"BLOCK": 32}, tolerance=1e-4)


@triton.jit
def cumprod_1d(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.cumprod(tl.load(X + o), 0))


@case(cumprod_1d)
def cumprod_of_a_vector():
    x, y = torch.rand(16) + 0.5, torch.zeros(16)
    return Run((x, y), [y], [x.cumprod(0)], {"BLOCK": 16})


@triton.jit
def _decay(a, b):
    return a * 0.5 + b


@triton.jit
def scan(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.associative_scan(tl.load(X + o), 0, _decay))


@case(scan)
def associative_scan():
    x, y = torch.randn(N), torch.zeros(N)
    expected = x.clone()
    for i in range(1, N):
        expected[i] = expected[i - 1] * 0.5 + x[i]
    return Run((x, y), [y], [expected], {"BLOCK": N})


@triton.jit
def flip(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.flip(tl.load(X + o)))


@case(flip)
def flip_of_a_vector():
    x, y = torch.randn(N), torch.zeros(N)
    return Run((x, y), [y], [x.flip(0)], {"BLOCK": N}, tolerance=0)


@triton.jit
def gather_1d(X, AT, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.gather(tl.load(X + o), tl.load(AT + o), 0))


@case(gather_1d)
def gather_of_a_vector():
    x, i, y = torch.randn(N), torch.randint(0, N, (N,), dtype=torch.int32), torch.zeros(N)
    return Run((x, i, y), [y], [x[i.long()]], {"BLOCK": N}, tolerance=0)


@triton.jit
def gather_2d(X, AT, Y, ROWS: tl.constexpr, COLS: tl.constexpr):
    o = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(Y + o, tl.gather(tl.load(X + o), tl.load(AT + o), 1))


@case(gather_2d)
def gather_along_the_rows():
    x, y = torch.randn(8, 32), torch.zeros(8, 32)
    i = torch.randint(0, 32, (8, 32), dtype=torch.int32)
    meta = {"ROWS": 8, "COLS": 32}
    return Run((x, i, y), [y], [x.gather(1, i.long())], meta, tolerance=0)


@triton.jit
def transpose(X, Y, SIDE: tl.constexpr):
    o = tl.arange(0, SIDE * SIDE)
    x = tl.trans(tl.reshape(tl.load(X + o), (SIDE, SIDE)))
    tl.store(Y + o, tl.reshape(x, (SIDE * SIDE,)))


@case(transpose)
def reshape_and_transpose():
    x, y = torch.randn(N, N), torch.zeros(N, N)
    return Run((x, y), [y], [x.T], {"SIDE": N}, tolerance=0)


@triton.jit
def extrema(X, LOW, AT, ROWS: tl.constexpr, COLS: tl.constexpr):
    r = tl.arange(0, ROWS)
    x = tl.load(X + r[:, None] * COLS + tl.arange(0, COLS)[None, :])
    tl.store(LOW + r, tl.min(x, 1))
    tl.store(AT + r, tl.argmax(x, 1))


@case(extrema)
def minimum_and_argmax():
    x = torch.randn(N, N)
    low, at = torch.zeros(N), torch.zeros(N, dtype=torch.int32)
    expected = [x.min(1)[0], x.argmax(1)]
    return Run((x, low, at), [low, at], expected, {"ROWS": N, "COLS": N}, tolerance=0)


@triton.jit
def row_maximum(X, Y, ROWS: tl.constexpr, COLS: tl.constexpr):
    r = tl.arange(0, ROWS)
    x = tl.load(X + r[:, None] * COLS + tl.arange(0, COLS)[None, :])
    tl.store(Y + r, tl.max(x, 1))


@case(row_maximum)
def row_maximum_with_infinities():
    x, y = torch.randn(16, 128), torch.zeros(16)
    x[3] = -float("inf")
    x[4, 77] = float("inf")
    meta = {"ROWS": 16, "COLS": 128}
    return Run((x, y), [y], [x.max(1)[0]], meta, tolerance=0)


@triton.jit
def interleave(X, Y, BLOCK: tl.constexpr):
    x = tl.load(X + tl.arange(0, BLOCK))
    tl.store(Y + tl.arange(0, 2 * BLOCK), tl.interleave(x, x + 100.0))


@case(interleave)
def interleave_two_vectors():
    x, y = torch.randn(N), torch.zeros(2 * N)
    return Run((x, y), [y], [torch.stack([x, x + 100], -1).flatten()], {"BLOCK": N})


@triton.jit
def slices(X, Y, SIDE: tl.constexpr):
    o = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    x = tl.load(X + o)
    part = tl.extract_slice(x, (8, 0), (8, SIDE), (1, 1))
    tl.store(Y + o, tl.insert_slice(x, part * 2.0, (0, 0), (8, SIDE), (1, 1)))


@case(slices)
def extract_and_insert_slice():
    x, y = torch.randn(32, 32), torch.zeros(32, 32)
    return Run((x, y), [y], [torch.cat([x[8:16] * 2, x[8:]])], {"SIDE": 32}, tolerance=0)


@triton.jit
def softmax(X, Y, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(X + row * stride + o, mask=m, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(Y + row * stride + o, (e / tl.sum(e, 0)).to(Y.dtype.element_ty), mask=m)


def _softmax(dtype: torch.dtype, tolerance: float) -> Run:
    x = (torch.randn(37, 1000) * 3).to(dtype)
    y = torch.zeros_like(x)
    expected = x.float().softmax(-1)
    return Run((x, y, 1000, 1000), [y], [expected], {"BLOCK": 1024}, (37,), tolerance)


@case(softmax)
def softmax_float32():
    return _softmax(torch.float32, 1e-6)


@case(softmax)
def softmax_float16():
    return _softmax(torch.float16, 3e-4)


@case(softmax)
def softmax_bfloat16():
    return _softmax(torch.bfloat16, 2e-3)
