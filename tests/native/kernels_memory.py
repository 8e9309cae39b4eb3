"""Addresses, masks, block pointers and atomics."""

import torch
import triton
import triton.language as tl

from tests.native.catalogue import Run, catalogue

CASES, case = catalogue()
N = 64


@triton.jit
def strided(X, Y, s0, s1, SIDE: tl.constexpr):
    a = tl.arange(0, SIDE)
    x = tl.load(X + a[:, None] * s0 + a[None, :] * s1)
    tl.store(Y + a[:, None] * SIDE + a[None, :], x)


@case(strided)
def arbitrary_strides():
    x, y = torch.randn(3000), torch.zeros(16, 16)
    expected = x.as_strided((16, 16), (7, 160))
    return Run((x, y, 7, 160), [y], [expected], {"SIDE": 16}, tolerance=0)


@triton.jit
def offsets_64_bit(X, Y, s, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK).to(tl.int64) * s
    tl.store(Y + o, tl.load(X + o) + 1)


@case(offsets_64_bit)
def int64_offsets():
    x, y = torch.randn(N * 3), torch.zeros(N * 3)
    expected = torch.zeros(N * 3)
    expected[::3] = x[::3] + 1
    return Run((x, y, 3), [y], [expected], {"BLOCK": N}, tolerance=0)


@triton.jit
def block_pointers(X, Y, n, m, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    p = tl.make_block_ptr(X, (n, m), (m, 1), (row, 0), (ROWS, COLS), (1, 0))
    q = tl.make_block_ptr(Y, (n, m), (m, 1), (row, 0), (ROWS, COLS), (1, 0))
    for _ in range(0, tl.cdiv(m, COLS)):
        x = tl.load(p, boundary_check=(0, 1), padding_option="zero")
        tl.store(q, x + 1.0, boundary_check=(0, 1))
        p = tl.advance(p, (0, COLS))
        q = tl.advance(q, (0, COLS))


@case(block_pointers)
def block_pointers_with_boundary_check():
    x, y = torch.randn(70, 50), torch.zeros(70, 50)
    meta = {"ROWS": 16, "COLS": 32}
    return Run((x, y, 70, 50), [y], [x + 1], meta, (5,), tolerance=0)


@triton.jit
def interval_mask(X, Y, lo, hi, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = (o >= lo) & (o < hi)
    tl.store(Y + o, tl.load(X + o, mask=m, other=-1.0), mask=m)


@case(interval_mask)
def mask_with_two_ends():
    x, y = torch.randn(N), torch.full((N,), 5.0)
    expected = y.clone()
    expected[10:40] = x[10:40]
    return Run((x, y, 10, 40), [y], [expected], {"BLOCK": N}, tolerance=0)


@triton.jit
def discrete_mask(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = (o % 3) == 1
    tl.store(Y + o, tl.load(X + o, mask=m, other=-1.0) * 2.0, mask=m)


@case(discrete_mask)
def mask_with_holes():
    x, y = torch.randn(N), torch.full((N,), 5.0)
    expected = torch.where(torch.arange(N) % 3 == 1, x * 2, torch.tensor(5.0))
    return Run((x, y), [y], [expected], {"BLOCK": N}, tolerance=0)


@triton.jit
def discrete_mask_2d(X, Y, ROWS: tl.constexpr, COLS: tl.constexpr):
    r = tl.arange(0, ROWS)
    c = tl.arange(0, COLS)
    o = r[:, None] * COLS + c[None, :]
    m = (r % 2 == 0)[:, None] & (c % 3 == 0)[None, :]
    tl.store(Y + o, tl.load(X + o, mask=m, other=-1.0) * 2.0, mask=m)


@case(discrete_mask_2d)
def mask_with_holes_in_both_axes():
    x, y = torch.randn(16, 32), torch.full((16, 32), 5.0)
    expected = y.clone()
    expected[::2, ::3] = x[::2, ::3] * 2
    return Run((x, y), [y], [expected], {"ROWS": 16, "COLS": 32}, tolerance=0)


@triton.jit
def scatter(X, AT, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + tl.load(AT + o), tl.load(X + o))


@case(scatter)
def scatter_store():
    x, i, y = torch.randn(N), torch.randperm(N).int(), torch.zeros(N)
    expected = torch.zeros(N).scatter(0, i.long(), x)
    return Run((x, i, y), [y], [expected], {"BLOCK": N}, tolerance=0)


@triton.jit
def gather_rows(X, AT, Y, n, DIM: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    m = o < n
    i = tl.load(AT + o, mask=m, other=0)
    x = tl.load(X + i[:, None] * DIM + d[None, :], mask=m[:, None], other=0.0)
    tl.store(Y + o[:, None] * DIM + d[None, :], x, mask=m[:, None])


@case(gather_rows)
def gather_of_rows():
    x, y = torch.randn(500, N).bfloat16(), torch.zeros(77, N).bfloat16()
    i = torch.randint(0, 500, (77,), dtype=torch.int32)
    meta = {"DIM": N, "BLOCK": 32}
    return Run((x, i, y, 77), [y], [x[i.long()]], meta, (3,), tolerance=0)


@triton.jit
def merged_rows(X, Y, n, GROUP: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr):
    r = tl.arange(0, BLOCK)
    o = (r // GROUP)[:, None] * 1000 + (r % GROUP)[:, None] * 64 + tl.arange(0, DIM)[None, :]
    m = (r // GROUP < n)[:, None]
    tl.store(Y + o, tl.load(X + o, mask=m, other=0.0), mask=m)


@case(merged_rows)
def addresses_with_division():
    x, y = torch.randn(12000), torch.full((12000,), 9.0)
    r = torch.arange(15)
    o = (r // 3 * 1000 + r % 3 * 64)[:, None] + torch.arange(16)
    expected = y.clone()
    expected[o] = x[o]
    meta = {"GROUP": 3, "BLOCK": 32, "DIM": 16}
    return Run((x, y, 5), [y], [expected], meta, tolerance=0)


@triton.jit
def atomic_vector(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    tl.atomic_max(Y + o, x)
    tl.atomic_add(Y + BLOCK + (o % 4), x)


@case(atomic_vector)
def atomics_on_colliding_lanes():
    x, y = torch.randn(N), torch.zeros(N + 4)
    expected = torch.cat([x.clamp(min=0), x.view(-1, 4).sum(0)])
    return Run((x, y), [y], [expected], {"BLOCK": N})


@triton.jit
def atomic_scalar(Y):
    tl.atomic_xchg(Y, 7)
    tl.atomic_cas(Y + 1, 0, 9)


@case(atomic_scalar)
def exchange_and_compare():
    y = torch.zeros(2, dtype=torch.int32)
    return Run((y,), [y], [torch.tensor([7, 9])], tolerance=0)


@triton.jit
def atomic_sum(X, OUT, COUNT, n, cols, BLOCK: tl.constexpr, DIM: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    x = tl.load(X + r[:, None] * DIM + d[None, :], mask=r[:, None] < n, other=0.0)
    tl.atomic_add(OUT + d, tl.sum(x, 0), mask=d < cols)
    tl.atomic_add(COUNT, 1)


@case(atomic_sum)
def atomics_of_many_programs():
    x, out = torch.randn(1000, 64), torch.zeros(64)
    count = torch.zeros(1, dtype=torch.int32)
    total = x.sum(0)
    total[50:] = 0
    meta = {"BLOCK": 32, "DIM": 64}
    args = (x, out, count, 1000, 50)
    return Run(args, [out, count], [total, torch.tensor([32])], meta, (32,), tolerance=1e-4)
