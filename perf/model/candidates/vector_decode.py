"""Decode of one query head per key head on the vector cores alone, without a matrix product.

A cube tile has 16 rows at least, of which one query head fills one. Here ``s = sum_d k q`` and
``acc = sum_j p v`` are sums over broadcast products in fp32: no wasted row, but a vector core
multiplies 64 numbers per step where the cube multiplies 4096.

Shapes: q, out ``[B, N, D]``, k, v ``[B, S, N, D]`` by strides, rows dense; softmax_lse ``[B, N]``.
Per tile of BLOCK_KV keys: ``m' = max(m, max s)``, ``p = e^(s - m')``, ``total' = total e^(m - m') +
sum p``, ``acc' = acc e^(m - m') + sum p v``. q, m, total and acc stay on chip. One program per
vector core.
"""

# The loop over tasks is Triton, not Python: its bounds are tensors.
# pyright: reportArgumentType=false

import triton
import triton.language as tl

from fa_triton.kernels._softmax import MASKED, MAX_START, PROPAGATE, log_sum_exp


@triton.jit
def vector_decode(
    # inputs, fp16 | bf16
    q,
    k,
    v,
    seqused_kv,  # [B] i32
    # outputs
    out,
    softmax_lse,  # f32, natural log
    # scalars
    num_tasks,  # B * N
    num_heads,
    softmax_scale,
    # strides in elements
    stride_qb,
    stride_qn,
    stride_kb,
    stride_kn,
    stride_ks,
    stride_vb,
    stride_vn,
    stride_vs,
    # dimensions
    D: tl.constexpr,
    BLOCK_KV: tl.constexpr,
):
    """Attend one query row per task to the keys of its sequence."""
    o_key = tl.arange(0, BLOCK_KV)
    o_d = tl.arange(0, D)
    o_one = tl.arange(0, 1)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        b = task // num_heads
        n = task % num_heads
        tokens = tl.load(seqused_kv + b)
        row = b.to(tl.int64) * stride_qb + n.to(tl.int64) * stride_qn
        p_k = k + b.to(tl.int64) * stride_kb + n.to(tl.int64) * stride_kn
        p_v = v + b.to(tl.int64) * stride_vb + n.to(tl.int64) * stride_vn
        b_q = tl.load(q + row + o_d).to(tl.float32) * softmax_scale
        # tensors of one element: a scalar would have to leave the vector unit at every tile
        m = tl.full([1], MAX_START, tl.float32)
        total = tl.zeros([1], tl.float32)
        acc = tl.zeros([1, D], tl.float32)
        for s in range(0, tokens, BLOCK_KV):
            m_key = (o_key < tokens - s)[:, None]
            at_k = s.to(tl.int64) * stride_ks + o_key[:, None] * stride_ks + o_d[None, :]
            b_k = tl.load(p_k + at_k, mask=m_key, other=0.0).to(tl.float32)
            b_s = tl.sum(b_k * b_q[None, :], 1)[None, :]
            b_s = tl.where((o_key < tokens - s)[None, :], b_s, MASKED)
            m_new = tl.maximum(m, tl.max(b_s, 1), propagate_nan=PROPAGATE)
            b_p = tl.exp(b_s - m_new[:, None])
            alpha = tl.exp(m - m_new)
            total = total * alpha + tl.sum(b_p, 1)
            at_v = s.to(tl.int64) * stride_vs + o_key[:, None] * stride_vs + o_d[None, :]
            b_v = tl.load(p_v + at_v, mask=m_key, other=0.0).to(tl.float32)
            b_pv = tl.reshape(b_p, (BLOCK_KV, 1)) * b_v
            acc = acc * alpha[:, None] + tl.sum(b_pv, 0)[None, :]
            m = m_new
        b_out = acc / tl.maximum(total, 1.0e-30, propagate_nan=PROPAGATE)[:, None]
        tl.store(out + row + o_d[None, :], b_out.to(out.dtype.element_ty))
        tl.store(softmax_lse + task + o_one, log_sum_exp(m, total))
