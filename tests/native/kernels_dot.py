"""Matrix products, alone and in attention-like loops."""

import torch
import triton
import triton.language as tl

from tests.native.catalogue import Run, catalogue

CASES, case = catalogue()


@triton.jit
def product(X, Y, Z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    x = tl.load(X + m * K + tl.arange(0, K)[None, :])
    y = tl.load(Y + tl.arange(0, K)[:, None] * N + n)
    tl.store(Z + m * N + n, tl.dot(x, y))


def _product(m: int, n: int, k: int, dtype: torch.dtype) -> Run:
    x, y, z = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.zeros(m, n)
    return Run((x, y, z), [z], [x.double() @ y.double()], {"M": m, "N": n, "K": k})


@case(product)
def product_float32():
    return _product(32, 64, 16, torch.float32)


@case(product)
def product_float16():
    return _product(64, 32, 32, torch.float16)


@case(product)
def product_bfloat16_of_one_row():
    return _product(1, 64, 32, torch.bfloat16)


@case(product)
def product_carries_nan_and_infinity():
    x, y, z = torch.randn(32, 32), torch.randn(32, 32), torch.zeros(32, 32)
    x[3, 4] = float("nan")
    y[9, 9] = float("inf")
    return Run((x, y, z), [z], [x @ y], {"M": 32, "N": 32, "K": 32})


@triton.jit
def batched_product(X, Y, Z, SIDE: tl.constexpr):
    a = tl.arange(0, SIDE)
    b = tl.arange(0, 2)[:, None, None] * SIDE * SIDE
    o = b + a[None, :, None] * SIDE + a[None, None, :]
    tl.store(Z + o, tl.dot(tl.load(X + o), tl.load(Y + o)))


@case(batched_product)
def product_of_batches():
    x, y, z = torch.randn(2, 16, 16), torch.randn(2, 16, 16), torch.zeros(2, 16, 16)
    return Run((x, y, z), [z], [x @ y], {"SIDE": 16})


@triton.jit
def int8_product(X, Y, Z, SIDE: tl.constexpr):
    a = tl.arange(0, SIDE)
    o = a[:, None] * SIDE + a[None, :]
    tl.store(Z + o, tl.dot(tl.load(X + o), tl.load(Y + o)))


@case(int8_product)
def product_int8():
    x, y = (torch.randint(-9, 9, (32, 32), dtype=torch.int8) for _ in range(2))
    z = torch.zeros(32, 32, dtype=torch.int32)
    return Run((x, y, z), [z], [x.int() @ y.int()], {"SIDE": 32}, tolerance=0)


@triton.jit
def accumulate_transposed(X, Y, Z, SIDE: tl.constexpr):
    a = tl.arange(0, SIDE)
    o = a[:, None] * SIDE + a[None, :]
    tl.store(Z + o, tl.dot(tl.trans(tl.load(X + o)), tl.load(Y + o), tl.load(Z + o)))


@case(accumulate_transposed)
def product_with_accumulator():
    x, y = torch.randn(32, 32).bfloat16(), torch.randn(32, 32).bfloat16()
    z = torch.randn(32, 32)
    return Run((x, y, z), [z], [x.float().T @ y.float() + z], {"SIDE": 32})


@triton.jit
def scaled_scores(X, Y, G, Z, SIDE: tl.constexpr):
    a = tl.arange(0, SIDE)
    o = a[:, None] * SIDE + a[None, :]
    g = tl.load(G + o)
    s = tl.dot(tl.load(X + o) * tl.exp(g), tl.trans(tl.load(Y + o) * tl.exp(-g)))
    tl.store(Z + o, tl.where(a[:, None] >= a[None, :], s, 0.0))


@case(scaled_scores)
def scores_with_exponential_gates():
    x, y, g = torch.randn(32, 32), torch.randn(32, 32), torch.randn(32, 32) * 0.3
    z = torch.zeros(32, 32)
    expected = ((x * g.exp()) @ (y * (-g).exp()).T).tril()
    return Run((x, y, g, z), [z], [expected], {"SIDE": 32}, tolerance=1e-4)


@triton.jit
def attention(
    Q, K, V, OUT, scale, stride, n,
    HEADS: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(n, ROWS)
    d = tl.arange(0, DIM)
    for t in range(tl.program_id(0), blocks * HEADS, tl.num_programs(0)):
        block = t % blocks
        base = (t // blocks) * DIM
        r = block * ROWS + tl.arange(0, ROWS)
        q = tl.load(Q + base + r[:, None] * stride + d[None, :], mask=r[:, None] < n, other=0.0)
        high = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIM], tl.float32)
        for s in range(0, tl.minimum(n, (block + 1) * ROWS), COLS):
            c = s + tl.arange(0, COLS)
            seen = c[:, None] < n
            k = tl.load(K + base + c[:, None] * stride + d[None, :], mask=seen, other=0.0)
            x = tl.dot(q, tl.trans(k)) * scale
            x = tl.where(r[:, None] >= c[None, :], x, -float("inf"))
            higher = tl.maximum(high, tl.max(x, 1))
            p = tl.exp(x - higher[:, None])
            alpha = tl.exp(high - higher)
            total = total * alpha + tl.sum(p, 1)
            v = tl.load(V + base + c[:, None] * stride + d[None, :], mask=seen, other=0.0)
            acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
            high = higher
        o = (acc / total[:, None]).to(OUT.dtype.element_ty)
        tl.store(OUT + base + r[:, None] * stride + d[None, :], o, mask=r[:, None] < n)


def _attention(dtype: torch.dtype, tolerance: float) -> Run:
    heads, dim, n = 4, 64, 203
    q, k, v = (torch.randn(n, heads, dim).to(dtype) for _ in range(3))
    out = torch.zeros_like(q)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(0, 1) for x in (q, k, v)), is_causal=True
    ).transpose(0, 1)
    meta = {"HEADS": heads, "DIM": dim, "ROWS": 64, "COLS": 64}
    args = (q, k, v, out, dim**-0.5, heads * dim, n)
    return Run(args, [out], [expected], meta, (5,), tolerance)


@case(attention)
def causal_attention_float32():
    return _attention(torch.float32, 5e-6)


@case(attention)
def causal_attention_float16():
    return _attention(torch.float16, 2e-3)


@case(attention)
def causal_attention_bfloat16():
    return _attention(torch.bfloat16, 2e-2)


@triton.jit
def unit_inverse(A, X, SIDE: tl.constexpr):
    # (AT + strictly lower A)^-1 of one 64x64 block per program: forward substitution in the
    # 16x16 diagonal blocks, products below
    A += tl.program_id(0) * SIDE * SIDE
    X += tl.program_id(0) * SIDE * SIDE
    o = tl.arange(0, 16)
    tile = o[:, None] * SIDE + o[None, :]
    for i in range(0, 4):
        a = -tl.where(o[:, None] > o[None, :], tl.load(A + i * 16 * (SIDE + 1) + tile), 0.0)
        for r in range(2, 16):
            row = tl.where(o < r, -tl.load(A + (i * 16 + r) * SIDE + i * 16 + o), 0.0)
            row += tl.sum(row[:, None] * a, 0)
            a = tl.where((o == r)[:, None], row[None, :], a)
        a += tl.where(o[:, None] == o[None, :], 1.0, 0.0)
        tl.store(X + i * 16 * (SIDE + 1) + tile, a)
    for d in range(1, 4):
        for j in range(0, 4 - d):
            i = j + d
            acc = tl.zeros([16, 16], tl.float32)
            for k in range(j, i):
                left = tl.load(A + i * 16 * SIDE + k * 16 + tile)
                right = tl.load(X + k * 16 * SIDE + j * 16 + tile)
                acc += tl.dot(left, right, input_precision="ieee")
            inverse = tl.load(X + i * 16 * (SIDE + 1) + tile)
            product = -tl.dot(inverse, acc, input_precision="ieee")
            tl.store(X + i * 16 * SIDE + j * 16 + tile, product)


@case(unit_inverse)
def inverse_of_unit_triangles():
    a, x = torch.randn(8, 64, 64) * 0.2, torch.zeros(8, 64, 64)
    expected = torch.linalg.inv(torch.eye(64).double() + a.double().tril(-1))
    scale = expected.abs().max().item()
    return Run((a, x), [x], [expected], {"SIDE": 64}, (8,), 1e-5 * scale)
