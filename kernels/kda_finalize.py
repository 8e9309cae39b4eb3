"""Phase 5 of ``chunk_kda_fwd``, Finalize: ``attn_out = scale (qg h[c]) + Aqk v_new``.

One task is a tile of BLOCK_V value columns of one chunk and value head. The result is token-major
whatever the layout of the inputs.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_tokens num_v_heads scale".split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_finalize(
    # inputs
    qg,  # [B, HV, T, K] 16-bit
    Aqk,  # [B, HV, T, CHUNK] 16-bit
    v_new,  # [B, HV, T, V] 16-bit
    h,  # [chunks, HV, K, V] or [chunks, HV, V, K] 16-bit
    chunks,  # [Nc, 4] i32
    # outputs
    attn_out,  # [B, T, HV, V] 16-bit
    # scalars
    num_tasks,  # Nc * HV * column tiles
    num_tokens,
    num_v_heads,
    scale,
    # dimensions
    K: tl.constexpr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    # questions
    IS_V_FIRST: tl.constexpr,
):
    """Write the rows of the result."""
    COLUMN_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    o_t = tl.arange(0, CHUNK)
    o_k = tl.arange(0, BLOCK_K)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        o_v = task % COLUMN_TILES * BLOCK_V + tl.arange(0, BLOCK_V)
        i_hv = task // COLUMN_TILES % num_v_heads
        i_chunk = task // COLUMN_TILES // num_v_heads
        i_b, i_t, valid = chunk_place(chunks, i_chunk)
        m_t = (o_t < valid)[:, None]
        m_k = o_k < K
        m_v = o_v < V
        m_tv = m_t & m_v[None, :]
        row = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens)
        p_qg = qg + row * K + o_t[:, None] * K + o_k[None, :]
        p_h = h + (i_chunk.to(tl.int64) * num_v_heads + i_hv) * (K * V)
        b_qg = tl.load(p_qg, mask=m_t & m_k[None, :], other=0.0)
        if IS_V_FIRST:
            p_h += o_v[:, None] * K + o_k[None, :]
            b_h = tl.load(p_h, mask=m_v[:, None] & m_k[None, :], other=0.0)
            b_past = tl.dot(b_qg, tl.trans(b_h))
        else:
            p_h += o_k[:, None] * V + o_v[None, :]
            b_h = tl.load(p_h, mask=m_k[:, None] & m_v[None, :], other=0.0)
            b_past = tl.dot(b_qg, b_h)
        p_a = Aqk + row * CHUNK + o_t[:, None] * CHUNK + o_t[None, :]
        b_a = tl.load(p_a, mask=m_t, other=0.0)
        p_v = v_new + row * V + o_t[:, None] * V + o_v[None, :]
        b_v = tl.load(p_v, mask=m_tv, other=0.0)
        b_out = b_past * scale + tl.dot(b_a, b_v)
        first = (i_b.to(tl.int64) * num_tokens + i_t) * num_v_heads + i_hv
        p_out = attn_out + first * V + o_t[:, None] * (num_v_heads * V) + o_v[None, :]
        tl.store(p_out, b_out.to(attn_out.dtype.element_ty), mask=m_tv)
