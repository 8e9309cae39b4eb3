"""Phase 2 of ``chunk_kda_fwd``, Prepare, diagonal: exact blocks where an unbounded gate is steep.

Column by column, ``sum_k q_ik k_jk 2^(gk_ik - gk_jk)`` and the same of the keys with every
difference of gates taken apart, so that no exponent is positive. A pure vector kernel; one task is
one block of one chunk and value head. ``kda_prepare_scores`` has left steep blocks zero and done
the others.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row, token_base
from ._kda_gate import activate_beta

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "num_tasks num_tokens num_heads num_v_heads scale beta_scale stride_qb stride_qh stride_kb "
    "stride_kh stride_bb stride_bh stride_bt"
).split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_prepare_diagonal(
    # inputs
    q,  # [.., K] 16-bit, through strides
    k,
    q_rstd,  # [B, H, T] f32 or None: factors on the rows of q and k
    k_rstd,
    gk,  # [B, HV, T, K] f32
    beta,  # [..] f32 or bf16, through strides
    is_steep,  # [Nc, HV, row blocks] i32: which blocks to write, or None: all
    chunks,  # [Nc, 4] i32
    # outputs
    Aqk,  # [B, HV, T, CHUNK] 16-bit
    Lkk,  # [B, HV, T, CHUNK] f32
    # scalars
    num_tasks,  # Nc * HV * row blocks
    num_tokens,
    num_heads,
    num_v_heads,
    scale,
    beta_scale,
    # strides in elements: batch entry (b), token (t), head (h)
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_bb,
    stride_bt,
    stride_bh,
    # dimensions
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    # questions
    HAS_BETA_SIGMOID: tl.constexpr,
):
    """Write the diagonal blocks of both score matrices."""
    ROW_BLOCKS: tl.constexpr = CHUNK // BLOCK_R
    o_r = tl.arange(0, BLOCK_R)
    i = o_r[:, None]
    j = o_r[None, :]
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_unit = task // ROW_BLOCKS
        first = (task % ROW_BLOCKS) * BLOCK_R
        i_hv = i_unit % num_v_heads
        i_h = i_hv // (num_v_heads // num_heads)
        i_b, i_t, valid = chunk_place(chunks, i_unit // num_v_heads)
        i_t += first
        rows = valid - first
        if is_steep is not None:
            rows *= tl.load(is_steep + task)
        if rows > 0:
            m_r = o_r < rows
            row = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens)
            norm_row = head_major_row(i_b, i_t, i_h, num_heads, num_tokens)
            p_q = q + token_base(i_b, i_t, i_h, stride_qb, stride_qt, stride_qh)
            p_k = k + token_base(i_b, i_t, i_h, stride_kb, stride_kt, stride_kh)
            p_beta = beta + token_base(i_b, i_t, i_hv, stride_bb, stride_bt, stride_bh)
            p_gk = gk + row * K
            b_beta = tl.load(p_beta + o_r * stride_bt, mask=m_r, other=0.0).to(tl.float32)
            b_beta = activate_beta(b_beta, beta_scale, HAS_BETA_SIGMOID)
            b_scale = tl.zeros([BLOCK_R], tl.float32) + scale
            if q_rstd is not None:
                b_scale *= tl.load(q_rstd + norm_row + o_r, mask=m_r, other=0.0)
                b_beta *= tl.load(k_rstd + norm_row + o_r, mask=m_r, other=0.0)
            b_qk = tl.zeros([BLOCK_R, BLOCK_R], tl.float32)
            b_kk = tl.zeros([BLOCK_R, BLOCK_R], tl.float32)
            for s in range(0, K, BLOCK_K):
                o_k = s + tl.arange(0, BLOCK_K)
                m_k = o_k < K
                m_rk = m_r[:, None] & m_k[None, :]
                b_q = tl.load(p_q + o_r[:, None] * stride_qt + o_k[None, :], mask=m_rk, other=0.0)
                b_k = tl.load(p_k + o_r[:, None] * stride_kt + o_k[None, :], mask=m_rk, other=0.0)
                b_gk = tl.load(p_gk + o_r[:, None] * K + o_k[None, :], mask=m_rk, other=0.0)
                b_q = b_q.to(tl.float32)
                b_k = b_k.to(tl.float32)
                for column in range(0, tl.minimum(rows, BLOCK_R)):
                    b_kj = tl.load(p_k + column * stride_kt + o_k, mask=m_k, other=0.0)
                    b_kj = b_kj.to(tl.float32)
                    if k_rstd is not None:
                        b_kj *= tl.load(k_rstd + norm_row + column)
                    b_gj = tl.load(p_gk + column * K + o_k, mask=m_k, other=0.0)
                    decay = tl.exp2(tl.minimum(b_gk - b_gj[None, :], 0.0))
                    b_e = b_kj[None, :] * decay
                    is_column = j == column
                    b_qk += tl.where(is_column, tl.sum(b_q * b_e, 1)[:, None], 0.0)
                    b_kk += tl.where(is_column, tl.sum(b_k * b_e, 1)[:, None], 0.0)
            b_qk = tl.where(i >= j, b_qk, 0.0) * b_scale[:, None]
            b_kk = tl.where(i > j, b_kk, 0.0) * b_beta[:, None]
            p_out = row * CHUNK + first + i * CHUNK + j
            tl.store(Aqk + p_out, b_qk.to(Aqk.dtype.element_ty), mask=m_r[:, None])
            tl.store(Lkk + p_out, b_kk, mask=m_r[:, None])
