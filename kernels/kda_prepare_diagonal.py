"""Phase 2 of ``chunk_kda_fwd``, Prepare, diagonal: exact diagonal blocks for unbounded gates.

The decay ``2^(gk_i - gk_j)`` of i > j is taken apart at a row s with j < s <= i, so that neither
factor has a positive exponent: halves of a block meet at its middle row, halves of a half at
theirs, down to neighbours. Each level is one product of ``q f`` and one of ``k f`` with ``k f``,
``f = 2^-|gk - gk_s|``, of which the quadrants of that level count. The differences to the middle
rows come from a product as well, with a matrix of one 1 and one -1 per row: rows chosen by address
would be copied one by one, and broadcast ones overflow the unified buffer.

One task is one block of one chunk and value head; ``kda_prepare_scores`` has left it zero.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row, token_base
from ._kda_gate import activate_beta

# halvings of a block of 16 rows
LEVELS = tl.constexpr(4)

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
        m_r = o_r < rows
        row = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens)
        p_q = q + token_base(i_b, i_t, i_h, stride_qb, stride_qt, stride_qh)
        p_k = k + token_base(i_b, i_t, i_h, stride_kb, stride_kt, stride_kh)
        p_beta = beta + token_base(i_b, i_t, i_hv, stride_bb, stride_bt, stride_bh)
        p_gk = gk + row * K
        b_beta = tl.load(p_beta + o_r * stride_bt, mask=m_r, other=0.0).to(tl.float32)
        b_beta = activate_beta(b_beta, beta_scale, HAS_BETA_SIGMOID)
        if q_rstd is not None:
            norm_row = head_major_row(i_b, i_t, i_h, num_heads, num_tokens)
            b_q_rstd = tl.load(q_rstd + norm_row + o_r, mask=m_r, other=0.0)
            b_k_rstd = tl.load(k_rstd + norm_row + o_r, mask=m_r, other=0.0)
        b_qk = tl.zeros([BLOCK_R, BLOCK_R], tl.float32)
        b_kk = tl.zeros([BLOCK_R, BLOCK_R], tl.float32)
        # a block behind the tail has nothing to add up
        for s in range(0, tl.where(rows > 0, K, 0), BLOCK_K):
            o_k = s + tl.arange(0, BLOCK_K)
            m_k = o_k < K
            m_rk = m_r[:, None] & m_k[None, :]
            b_q = tl.load(p_q + o_r[:, None] * stride_qt + o_k[None, :], mask=m_rk, other=0.0)
            b_k = tl.load(p_k + o_r[:, None] * stride_kt + o_k[None, :], mask=m_rk, other=0.0)
            b_gk = tl.load(p_gk + o_r[:, None] * K + o_k[None, :], mask=m_rk, other=0.0)
            b_q = b_q.to(tl.float32)
            b_k = b_k.to(tl.float32)
            if q_rstd is not None:
                b_q *= b_q_rstd[:, None]
                b_k *= b_k_rstd[:, None]
            own = tl.sum(b_q * b_k, 1)
            b_qk += tl.where(i == j, own[:, None], 0.0)
            for level in range(0, LEVELS):
                middle = ((i >> (level + 1)) << (level + 1)) + (1 << level)
                pick = (j == middle).to(tl.float32) - (j == i).to(tl.float32)
                distance = tl.dot(pick, b_gk, input_precision="ieee")
                factor = tl.exp2(-tl.abs(distance))
                b_kf = b_k * factor
                b_kt = tl.trans(b_kf)
                in_pair = (i >> (level + 1)) == (j >> (level + 1))
                is_quadrant = in_pair & ((i >> level) > (j >> level))
                qk = tl.dot(b_q * factor, b_kt, input_precision="ieee")
                kk = tl.dot(b_kf, b_kt, input_precision="ieee")
                b_qk += tl.where(is_quadrant, qk, 0.0)
                b_kk += tl.where(is_quadrant, kk, 0.0)
        p_out = row * CHUNK + first + i * CHUNK + j
        tl.store(Aqk + p_out, (b_qk * scale).to(Aqk.dtype.element_ty), mask=m_r[:, None])
        tl.store(Lkk + p_out, b_kk * b_beta[:, None], mask=m_r[:, None])
