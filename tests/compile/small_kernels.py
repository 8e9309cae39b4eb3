"""Small kernels, each of which shows one thing the compile check must see."""

import triton
import triton.language as tl

PROPAGATE = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def attend(
    q,
    k,
    v,
    out,
    counter,
    num_keys,
    limit,
    group,
    scale,
    BLOCK_Q: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    D: tl.constexpr,
    FORM: tl.constexpr,
):
    """Attention of one row block; FORM chooses the fault, ``"good"`` has none."""
    o_row = tl.arange(0, BLOCK_Q)
    o_key = tl.arange(0, BLOCK_KV)
    o_d = tl.arange(0, D)
    if FORM == "divided_rows":
        p_q = q + (o_row // group)[:, None] * 4096 + (o_row % group)[:, None] * D + o_d[None, :]
    else:
        p_q = q + tl.program_id(0) * BLOCK_Q * D + o_row[:, None] * D + o_d[None, :]
    b_q = tl.load(p_q)
    m = tl.full([BLOCK_Q], -0.5e30, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, D], tl.float32)
    if FORM == "while_loop":
        s = 0
        while s < num_keys:
            m, total, acc = _tile(
                b_q, k, v, s, limit, scale, m, total, acc, o_row, o_key, o_d, BLOCK_KV, D, FORM
            )
            s += BLOCK_KV
    else:
        for s in range(0, num_keys, BLOCK_KV):
            m, total, acc = _tile(
                b_q, k, v, s, limit, scale, m, total, acc, o_row, o_key, o_d, BLOCK_KV, D, FORM
            )
    p_out = out + tl.program_id(0) * BLOCK_Q * D + o_row[:, None] * D + o_d[None, :]
    tl.store(p_out, acc / total[:, None])
    if FORM == "atomic":
        tl.atomic_add(counter, 1)


@triton.jit
def _tile(
    b_q,
    k,
    v,
    s,
    limit,
    scale,
    m,
    total,
    acc,
    o_row,
    o_key,
    o_d,
    BLOCK_KV: tl.constexpr,
    D: tl.constexpr,
    FORM: tl.constexpr,
):
    if FORM == "transposed_pointers":
        b_kt = tl.load(k + o_d[:, None] + (s + o_key)[None, :] * D)
    else:
        b_kt = tl.trans(tl.load(k + (s + o_key)[:, None] * D + o_d[None, :]))
    b_s = tl.dot(b_q, b_kt) * scale
    if FORM == "position_mask" or FORM == "default_maximum":
        b_s = tl.where((limit + o_row)[:, None] >= (s + o_key)[None, :], b_s, -1.0e30)
    else:
        b_s = tl.where(o_key[None, :] < (limit + o_row - s)[:, None], b_s, -1.0e30)
    if FORM == "default_maximum":
        m_new = tl.maximum(m, tl.max(b_s, 1))
    else:
        m_new = tl.maximum(m, tl.max(b_s, 1), propagate_nan=PROPAGATE)
    b_p = tl.exp(b_s - m_new[:, None])
    alpha = tl.exp(m - m_new)
    total = total * alpha + tl.sum(b_p, 1)
    if FORM == "fractal_values":
        o_f, o_e = tl.arange(0, D // 16), tl.arange(0, 16)
        p_v = v + (s + o_key)[:, None, None] * 16 + o_f[None, :, None] * 4096 + o_e[None, None, :]
        b_v = tl.reshape(tl.load(p_v), (BLOCK_KV, D))
    else:
        b_v = tl.load(v + (s + o_key)[:, None] * D + o_d[None, :])
    if FORM == "cast_values":
        acc = tl.dot(b_p, b_v.to(tl.float32), acc * alpha[:, None])
    else:
        acc = tl.dot(b_p.to(b_v.dtype), b_v, acc * alpha[:, None])
    return m_new, total, acc


ATTEND_SIGNATURE = {
    "q": "*bf16:16",
    "k": "*bf16:16",
    "v": "*bf16:16",
    "out": "*fp32:16",
    "counter": "*i32:16",
    "num_keys": "i32",
    "limit": "i32",
    "group": "i32",
    "scale": "fp32",
}


def attend_constants(form: str, block_q: int = 64, block_kv: int = 128, d: int = 64) -> dict:
    return {"BLOCK_Q": block_q, "BLOCK_KV": block_kv, "D": d, "FORM": form}


@triton.jit
def two_products(x, y, z, start, out_x, out_y, K: tl.constexpr, ADD_LATER: tl.constexpr):
    """Two matrix products in one loop; the second accumulator starts at loaded values."""
    o_m = tl.arange(0, 16)
    o_n = tl.arange(0, 64)
    p_start = start + o_m[:, None] * 64 + o_n[None, :]
    acc_x = tl.zeros([16, 64], tl.float32)
    acc_y = tl.zeros([16, 64], tl.float32) if ADD_LATER else tl.load(p_start)
    for i in range(0, K, 64):
        o_k = i + tl.arange(0, 64)
        b_z = tl.trans(tl.load(z + o_n[:, None] * K + o_k[None, :]))
        acc_x += tl.dot(tl.load(x + o_m[:, None] * K + o_k[None, :]), b_z)
        acc_y += tl.dot(tl.load(y + o_m[:, None] * K + o_k[None, :]), b_z)
    if ADD_LATER:
        acc_y += tl.load(p_start)
    tl.store(out_x + o_m[:, None] * 64 + o_n[None, :], acc_x)
    tl.store(out_y + o_m[:, None] * 64 + o_n[None, :], acc_y)


TWO_PRODUCTS_SIGNATURE = {
    "x": "*bf16:16",
    "y": "*bf16:16",
    "z": "*bf16:16",
    "start": "*fp32:16",
    "out_x": "*fp32:16",
    "out_y": "*fp32:16",
}


@triton.jit
def copy_rows(x, out, group, ROWS: tl.constexpr, D: tl.constexpr, FORM: tl.constexpr):
    """Twice a tile; FORM chooses how its address is written."""
    o_row = tl.arange(0, ROWS)
    o_d = tl.arange(0, D)
    if FORM == "divided_rows":
        p_x = x + (o_row // group)[:, None] * 1024 + (o_row % group)[:, None] * D + o_d[None, :]
    elif FORM == "divided_columns":
        p_x = x + (o_d // 16)[None, :] * (ROWS * 16) + o_row[:, None] * 16 + (o_d % 16)[None, :]
    else:
        p_x = x + o_row[:, None] * D + o_d[None, :]
    tl.store(out + o_row[:, None] * D + o_d[None, :], tl.load(p_x) * 2)


COPY_ROWS_SIGNATURE = {"x": "*bf16:16", "out": "*bf16:16", "group": "i32"}


@triton.jit
def scale_rows(x, out, factor, stride, N: tl.constexpr, optional):
    """A kernel with an absent tensor and a stride that may equal one."""
    o_n = tl.arange(0, N)
    b_x = tl.load(x + o_n * stride) * factor
    if optional is not None:
        b_x += tl.load(optional + o_n)
    tl.store(out + o_n, b_x)


@triton.jit
def broken(x, N: tl.constexpr):
    """Multiplies tiles that do not match."""
    a = tl.zeros([16, 32], tl.float32)
    b = tl.zeros([N, 16], tl.float32)
    tl.store(x + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :], tl.dot(a, b))
