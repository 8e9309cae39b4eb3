"""Inverse norms of the rows of q and k, ``1 / sqrt(sum x^2 + 1e-6)`` in fp32.

A pure vector kernel; one task is a chunk of one q/k head. The phases multiply by them as they load,
so that normalised rows are never rounded to 16 bits.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row, token_base

NORM_EPSILON = tl.constexpr(1.0e-6)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_tokens num_heads stride_qb stride_qh stride_kb stride_kh".split()


@triton.jit
def _inverse_norms(
    p_x, stride_t, o_t, m_t, K: tl.constexpr, CHUNK: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Return [CHUNK] factors of the rows at ``p_x``."""
    b_sum = tl.zeros([CHUNK], tl.float32)
    for s in range(0, K, BLOCK_K):
        o_k = s + tl.arange(0, BLOCK_K)
        m_x = m_t[:, None] & (o_k < K)[None, :]
        b_x = tl.load(p_x + o_t[:, None] * stride_t + o_k[None, :], mask=m_x, other=0.0)
        b_x = b_x.to(tl.float32)
        b_sum += tl.sum(b_x * b_x, 1)
    return 1.0 / tl.sqrt(b_sum + NORM_EPSILON)


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_qk_norm(
    # inputs
    q,  # [.., K] 16-bit, through strides
    k,
    chunks,  # [Nc, 4] i32
    # outputs
    q_rstd,  # [B, H, T] f32
    k_rstd,
    # scalars
    num_tasks,  # Nc * H
    num_tokens,
    num_heads,
    # strides in elements: batch entry (b), token (t), head (h)
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    # dimensions
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write the inverse norms of both tensors."""
    o_t = tl.arange(0, CHUNK)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_h = task % num_heads
        i_b, i_t, valid = chunk_place(chunks, task // num_heads)
        p_q = q + token_base(i_b, i_t, i_h, stride_qb, stride_qt, stride_qh)
        p_k = k + token_base(i_b, i_t, i_h, stride_kb, stride_kt, stride_kh)
        row = head_major_row(i_b, i_t, i_h, num_heads, num_tokens)
        m_t = o_t < valid
        b_q = _inverse_norms(p_q, stride_qt, o_t, m_t, K, CHUNK, BLOCK_K)
        tl.store(q_rstd + row + o_t, b_q, mask=m_t)
        b_k = _inverse_norms(p_k, stride_kt, o_t, m_t, K, CHUNK, BLOCK_K)
        tl.store(k_rstd + row + o_t, b_k, mask=m_t)
