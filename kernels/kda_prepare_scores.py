"""Phase 2 of ``chunk_kda_fwd``, Prepare, scores: decayed products of a chunk's queries and keys.

``Aqk_ij = scale sum_k q_ik k_jk 2^(gk_ik - gk_jk)`` for i >= j and, for i > j, beta_i times the
same of the keys, ``Lkk_ij``. One task is BLOCK_R rows of one chunk and value head. The first is the
reference row r: ``2^(gk_i - gk_r) 2^(gk_r - gk_j)`` has no positive exponent for columns before
the block. Inside the block it has, at most 15 * 5 / ln 2 = 108 with a bounded gate (-5 per token at
least), which fp32 holds; an unbounded gate may have steeper blocks, which are left zero here and
written by ``kda_prepare_diagonal``.

The masks stand inside the loop over K on purpose: the compiler of A5 (1.2.0) merges two bare
``acc += tl.dot`` of one loop into one product.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row, token_base
from ._kda_gate import activate_beta

# exponents that fp32 holds with room for a sum of products
LARGEST_EXPONENT = tl.constexpr(120.0)
SMALLEST_EXPONENT = tl.constexpr(-126.0)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "num_tasks num_tokens num_heads num_v_heads scale beta_scale stride_qb stride_qh stride_kb "
    "stride_kh stride_bb stride_bh stride_bt"
).split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_prepare_scores(
    # inputs
    q,  # [.., K] 16-bit, through strides
    k,
    q_rstd,  # [B, H, T] f32 or None: factors on the rows of q and k
    k_rstd,
    gk,  # [B, HV, T, K] f32
    beta,  # [..] f32 or bf16, through strides
    is_steep,  # [Nc, HV, row blocks] i32: whether to leave a diagonal block zero, or None: none
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
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    # questions
    HAS_BETA_SIGMOID: tl.constexpr,
):
    """Write the rows of both score matrices, zero above the diagonal."""
    ROW_BLOCKS: tl.constexpr = CHUNK // BLOCK_R
    o_c = tl.arange(0, BLOCK_C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_unit = task // ROW_BLOCKS
        first = (task % ROW_BLOCKS) * BLOCK_R
        i_hv = i_unit % num_v_heads
        i_h = i_hv // (num_v_heads // num_heads)
        i_b, i_t, valid = chunk_place(chunks, i_unit // num_v_heads)
        o_r = first + tl.arange(0, BLOCK_R)
        m_r = o_r < valid
        p_q = q + token_base(i_b, i_t, i_h, stride_qb, stride_qt, stride_qh)
        p_k = k + token_base(i_b, i_t, i_h, stride_kb, stride_kt, stride_kh)
        p_beta = beta + token_base(i_b, i_t, i_hv, stride_bb, stride_bt, stride_bh)
        row = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens)
        p_gk = gk + row * K
        b_beta = tl.load(p_beta + o_r * stride_bt, mask=m_r, other=0.0).to(tl.float32)
        b_beta = activate_beta(b_beta, beta_scale, HAS_BETA_SIGMOID)
        b_scale = tl.zeros([BLOCK_R], tl.float32) + scale
        if q_rstd is not None:
            norm_row = head_major_row(i_b, i_t, i_h, num_heads, num_tokens)
            b_scale *= tl.load(q_rstd + norm_row + o_r, mask=m_r, other=0.0)
            b_beta *= tl.load(k_rstd + norm_row + o_r, mask=m_r, other=0.0)
        # 1 where rows see each other inside the block, besides columns before it
        inside = 1
        if is_steep is not None:
            inside = 1 - tl.load(is_steep + task)
        cap = inside * LARGEST_EXPONENT
        o_end = first + tl.arange(0, BLOCK_R) * inside
        # no row of a block behind the tail, no key behind the block
        end_c = tl.where(first < valid, CHUNK, 0)
        for c in range(0, end_c, BLOCK_C):
            o_j = c + o_c
            m_j = o_j < valid
            b_qk = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
            b_kk = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
            end_k = tl.where(c < first + inside, K, 0)
            for s in range(0, end_k, BLOCK_K):
                o_k = s + tl.arange(0, BLOCK_K)
                m_k = o_k < K
                m_rk = m_r[:, None] & m_k[None, :]
                m_jk = m_j[:, None] & m_k[None, :]
                p_rows = o_r[:, None] * K + o_k[None, :]
                b_gk = tl.load(p_gk + p_rows, mask=m_rk, other=0.0)
                b_ref = tl.load(p_gk + first * K + o_k, mask=m_k & (first < valid), other=0.0)
                b_q = tl.load(p_q + o_r[:, None] * stride_qt + o_k[None, :], mask=m_rk, other=0.0)
                b_k = tl.load(p_k + o_r[:, None] * stride_kt + o_k[None, :], mask=m_rk, other=0.0)
                b_kj = tl.load(p_k + o_j[:, None] * stride_kt + o_k[None, :], mask=m_jk, other=0.0)
                b_gj = tl.load(p_gk + o_j[:, None] * K + o_k[None, :], mask=m_jk, other=0.0)
                grown = tl.exp2(tl.minimum(b_ref[None, :] - b_gj, cap))
                b_kj = tl.trans(b_kj.to(tl.float32) * grown)
                decay = tl.exp2(tl.maximum(b_gk - b_ref[None, :], SMALLEST_EXPONENT))
                b_q = b_q.to(tl.float32) * decay
                b_k = b_k.to(tl.float32) * decay
                qk = tl.dot(b_q, b_kj, input_precision="ieee")
                kk = tl.dot(b_k, b_kj, input_precision="ieee")
                b_qk += tl.where((o_end + inside)[:, None] > o_j[None, :], qk, 0.0)
                b_kk += tl.where(o_end[:, None] > o_j[None, :], kk, 0.0)
            if k_rstd is not None:
                b_norm = tl.load(k_rstd + norm_row + o_j, mask=m_j, other=0.0)
                b_qk *= b_norm[None, :]
                b_kk *= b_norm[None, :]
            p_out = row * CHUNK + o_r[:, None] * CHUNK + o_j[None, :]
            b_qk *= b_scale[:, None]
            tl.store(Aqk + p_out, b_qk.to(Aqk.dtype.element_ty), mask=m_r[:, None])
            tl.store(Lkk + p_out, b_kk * b_beta[:, None], mask=m_r[:, None])
