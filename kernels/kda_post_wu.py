"""Phase 3 of ``chunk_kda_fwd``, Post-WU: what the recurrence over chunks reads.

``w = Akk (beta k 2^gk)``, ``u = Akk (beta v)``, ``qg = q 2^gk``, ``kg = k 2^(gk_last - gk)`` with
gk_last of the last valid row. One task is one chunk of one value head.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row, token_base
from ._kda_gate import activate_beta

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "num_tasks num_tokens num_heads num_v_heads beta_scale stride_qb stride_qh stride_kb stride_kh "
    "stride_vb stride_vh stride_bb stride_bh stride_bt"
).split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_post_wu(
    # inputs
    q,  # [.., K] 16-bit, through strides
    k,
    v,  # [.., V] 16-bit, through strides
    q_rstd,  # [B, H, T] f32 or None: factors on the rows of q and k
    k_rstd,
    gk,  # [B, HV, T, K] f32
    beta,  # [..] f32 or bf16, through strides
    Akk,  # [B, HV, T, CHUNK] 16-bit
    chunks,  # [Nc, 4] i32
    # outputs, 16-bit
    w,  # [B, HV, T, K]
    u,  # [B, HV, T, V]
    qg,  # [B, HV, T, K]
    kg,  # [B, HV, T, K]
    # scalars
    num_tasks,  # Nc * HV
    num_tokens,
    num_heads,
    num_v_heads,
    beta_scale,
    # strides in elements: batch entry (b), token (t), head (h)
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    stride_bb,
    stride_bt,
    stride_bh,
    # dimensions
    K: tl.constexpr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    # questions
    HAS_BETA_SIGMOID: tl.constexpr,
):
    """Write w, u, qg and kg of every chunk."""
    o_t = tl.arange(0, CHUNK)
    dtype = w.dtype.element_ty
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_hv = task % num_v_heads
        i_h = i_hv // (num_v_heads // num_heads)
        i_b, i_t, valid = chunk_place(chunks, task // num_v_heads)
        m_t = o_t < valid
        p_q = q + token_base(i_b, i_t, i_h, stride_qb, stride_qt, stride_qh)
        p_k = k + token_base(i_b, i_t, i_h, stride_kb, stride_kt, stride_kh)
        p_v = v + token_base(i_b, i_t, i_hv, stride_vb, stride_vt, stride_vh)
        p_beta = beta + token_base(i_b, i_t, i_hv, stride_bb, stride_bt, stride_bh)
        row = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens)
        b_beta = tl.load(p_beta + o_t * stride_bt, mask=m_t, other=0.0).to(tl.float32)
        b_beta = activate_beta(b_beta, beta_scale, HAS_BETA_SIGMOID)
        if q_rstd is not None:
            norm_row = head_major_row(i_b, i_t, i_h, num_heads, num_tokens)
            b_q_rstd = tl.load(q_rstd + norm_row + o_t, mask=m_t, other=0.0)
            b_k_rstd = tl.load(k_rstd + norm_row + o_t, mask=m_t, other=0.0)
        p_a = Akk + row * CHUNK + o_t[:, None] * CHUNK + o_t[None, :]
        for s in range(0, K, BLOCK_K):
            o_k = s + tl.arange(0, BLOCK_K)
            m_k = m_t[:, None] & (o_k < K)[None, :]
            p_out = row * K + o_t[:, None] * K + o_k[None, :]
            b_gk = tl.load(gk + p_out, mask=m_k, other=0.0)
            p_last = gk + (row + valid - 1) * K + o_k
            b_last = tl.load(p_last, mask=o_k < K, other=0.0)
            b_q = tl.load(p_q + o_t[:, None] * stride_qt + o_k[None, :], mask=m_k, other=0.0)
            b_k = tl.load(p_k + o_t[:, None] * stride_kt + o_k[None, :], mask=m_k, other=0.0)
            b_q = b_q.to(tl.float32)
            b_k = b_k.to(tl.float32)
            if q_rstd is not None:
                b_q *= b_q_rstd[:, None]
                b_k *= b_k_rstd[:, None]
            decay = tl.exp2(b_gk)
            rest = tl.exp2(tl.minimum(b_last[None, :] - b_gk, 0.0))
            tl.store(qg + p_out, (b_q * decay).to(dtype), mask=m_k)
            tl.store(kg + p_out, (b_k * rest).to(dtype), mask=m_k)
            b_a = tl.load(p_a, mask=m_t[:, None], other=0.0)
            b_w = tl.dot(b_a, (b_k * decay * b_beta[:, None]).to(dtype))
            tl.store(w + p_out, b_w.to(dtype), mask=m_k)
        for s in range(0, V, BLOCK_V):
            o_v = s + tl.arange(0, BLOCK_V)
            m_v = m_t[:, None] & (o_v < V)[None, :]
            b_v = tl.load(p_v + o_t[:, None] * stride_vt + o_v[None, :], mask=m_v, other=0.0)
            b_a = tl.load(p_a, mask=m_t[:, None], other=0.0)
            b_u = tl.dot(b_a, (b_v.to(tl.float32) * b_beta[:, None]).to(dtype))
            p_out = u + row * V + o_t[:, None] * V + o_v[None, :]
            tl.store(p_out, b_u.to(dtype), mask=m_v)
