"""Masked-off lanes are neither read nor written: wild indices and pages that may not be touched."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
import triton
import triton.language as tl

from fa_triton.launch import runner
from fa_triton.native.guarded_access import guard_masked_accesses

LANES, DIM = 32, 16
WILD = 10**8
PAGE = mmap.PAGESIZE


class GuardedPages:
    """Memory between two pages that fault when touched."""

    def __init__(self, count: int) -> None:
        self.size = count * PAGE
        self._map = mmap.mmap(-1, self.size + 2 * PAGE)
        self._view = (ctypes.c_char * (self.size + 2 * PAGE)).from_buffer(self._map)
        start = ctypes.addressof(self._view)
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for page in (start, start + PAGE + self.size):
            if protect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def last(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A float32 tensor that ends where the memory does."""
        count = torch.Size(shape).numel()
        offset = PAGE + self.size - 4 * count
        return torch.frombuffer(self._map, dtype=torch.float32, count=count, offset=offset).view(
            shape
        )


@triton.jit
def by_index(X, AT, Y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    i = tl.load(AT + o)
    tl.store(Y + o, tl.load(X + i, mask=o < n, other=-1.0))


def wild_indices(valid: int, limit: int) -> torch.Tensor:
    i = torch.randint(0, limit, (LANES,), dtype=torch.int32)
    i[valid:] = WILD
    return i


def test_vector_of_indices() -> None:
    x, i, y = torch.randn(64), wild_indices(20, 64), torch.zeros(LANES)
    runner(by_index)[1](x, i, y, 20, BLOCK=LANES)
    assert torch.equal(y[:20], x[i[:20].long()])
    assert (y[20:] == -1).all()


@triton.jit
def rows_by_index(X, AT, Y, n, cols, stride, BLOCK: tl.constexpr, DIM: tl.constexpr):
    o = tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    i = tl.load(AT + o)
    m = (o < n)[:, None] & (d < cols)[None, :]
    x = tl.load(X + i[:, None] * stride + d[None, :], mask=m, other=-1.0)
    tl.store(Y + o[:, None] * DIM + d[None, :], x)


@pytest.mark.parametrize("cols", [DIM, 10])
def test_rows_by_index(cols: int) -> None:
    x = GuardedPages(1).last((64, cols))
    x.normal_()
    i, y = wild_indices(20, 64), torch.zeros(LANES, DIM)
    i[0] = 63
    runner(rows_by_index)[1](x, i, y, 20, cols, cols, BLOCK=LANES, DIM=DIM)
    expected = torch.full((LANES, DIM), -1.0)
    expected[:20, :cols] = x[i[:20].long()]
    assert torch.equal(y, expected)


@triton.jit
def rows_by_index_one_mask(X, AT, Y, n, BLOCK: tl.constexpr, DIM: tl.constexpr):
    o = tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    i = tl.load(AT + o)
    x = tl.load(X + i[:, None] * DIM + d[None, :], mask=(o < n)[:, None], other=-1.0)
    tl.store(Y + o[:, None] * DIM + d[None, :], x)


def test_whole_rows_by_index() -> None:
    x, i, y = torch.randn(64, DIM), wild_indices(20, 64), torch.zeros(LANES, DIM)
    runner(rows_by_index_one_mask)[1](x, i, y, 20, BLOCK=LANES, DIM=DIM)
    assert torch.equal(y[:20], x[i[:20].long()])
    assert (y[20:] == -1).all()


@triton.jit
def by_two_indices(X, AT, J, Y, n, BLOCK: tl.constexpr, DIM: tl.constexpr):
    o = tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    i = tl.load(AT + o)
    j = tl.load(J + d)
    m = (o < n)[:, None] & (j < 5)[None, :]
    x = tl.load(X + i[:, None] * 7 + j[None, :], mask=m, other=2.0)
    tl.store(Y + o[:, None] * DIM + d[None, :], x)


def test_two_vectors_of_indices() -> None:
    x, i, y = torch.randn(64, 7), wild_indices(20, 64), torch.zeros(LANES, DIM)
    j = torch.arange(DIM, dtype=torch.int32)
    j[5:] = WILD
    runner(by_two_indices)[1](x, i, j, y, 20, BLOCK=LANES, DIM=DIM)
    expected = torch.full((LANES, DIM), 2.0)
    expected[:20, :5] = x[i[:20].long(), :5]
    assert torch.equal(y, expected)


@triton.jit
def load_and_store_by_condition(X, AT, Y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    for s in range(0, n, BLOCK):
        m = s + o < n
        i = tl.load(AT + s + o, mask=m, other=-1)
        m = m & (i >= 0)
        tl.store(Y + s + o, tl.load(X + i, mask=m, other=0.0), mask=m)


def test_store_touches_no_masked_lane() -> None:
    x = torch.randn(64)
    i = torch.randint(-1, 64, (50,), dtype=torch.int32)
    y = GuardedPages(1).last((50,))
    y.fill_(9.0)
    runner(load_and_store_by_condition)[1](x, i, y, 50, BLOCK=LANES)
    expected = torch.where(i >= 0, x[i.long()], torch.tensor(9.0))
    assert torch.equal(y, expected)


@triton.jit
def copy_tail(X, Y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = o < n
    tl.store(Y + o, tl.load(X + o, mask=m, other=0.0), mask=m)


def test_interval_masks_stay_inside() -> None:
    x, y = GuardedPages(1).last((20,)), GuardedPages(1).last((20,))
    x.normal_()
    runner(copy_tail)[1](x, y, 20, BLOCK=64)
    assert torch.equal(x, y)


@triton.jit
def copy_odd_lanes(X, Y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = (o % 2 == 1) & (o < n)
    tl.store(Y + o, tl.load(X + o, mask=m, other=0.0), mask=m)


def test_discrete_masks_stay_inside() -> None:
    x, y = GuardedPages(1).last((20,)), GuardedPages(1).last((20,))
    x.normal_()
    y.zero_()
    runner(copy_odd_lanes)[1](x, y, 20, BLOCK=64)
    assert torch.equal(y[1::2], x[1::2])
    assert (y[::2] == 0).all()


@triton.jit
def scatter(X, AT, Y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + tl.load(AT + o), tl.load(X + o), mask=o < n)


def test_scatter_to_wild_addresses() -> None:
    x, y = torch.randn(LANES), torch.zeros(64)
    i = torch.randperm(64)[:LANES].int()
    i[20:] = WILD
    runner(scatter)[1](x, i, y, 20, BLOCK=LANES)
    assert torch.equal(y[i[:20].long()], x[:20])


@triton.jit
def sum_then_select(X, AT, Y, n, steps, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for s in range(0, steps):
        i = tl.load(AT + s * BLOCK + o)
        total += tl.load(X + i)
    shifted = tl.where(o < n, total, -1.0)
    tl.store(Y + o, shifted)


def test_a_condition_after_a_loop_is_no_mask_of_its_loads() -> None:
    x, y = torch.randn(64), torch.zeros(LANES)
    i = torch.randint(0, 64, (3, LANES), dtype=torch.int32)
    runner(sum_then_select)[1](x, i, y, 20, 3, BLOCK=LANES)
    expected = x[i.long()].sum(0)
    expected[20:] = -1
    torch.testing.assert_close(y, expected)


def test_a_load_that_is_also_used_unmasked_is_left_alone() -> None:
    text = """
    %4 = arith.cmpi slt, %2, %3 : tensor<4xi32>
    %alloc = memref.alloc() : memref<4xf32>
    memref.copy %0, %alloc : memref<4xf32, strided<[1]>> to memref<4xf32>
    %5 = bufferization.to_tensor %alloc restrict writable : memref<4xf32>
    %6 = arith.select %4, %5, %1 : tensor<4xi1>, tensor<4xf32>
    %7 = arith.addf %5, %6 : tensor<4xf32>
"""
    assert guard_masked_accesses(text) == text
