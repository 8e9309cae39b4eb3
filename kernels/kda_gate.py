"""Phase 1 of ``chunk_kda_fwd``, Gate: activate the gates and sum them up inside each chunk.

``gk_i = sum_{j <= i in chunk} a_j / ln 2`` with a the natural-log decay of ``_kda_gate.py``. A pure
vector kernel; one task is a tile of BLOCK_K columns of one chunk and value head.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row, token_base
from ._kda_gate import activate

RCP_LN2 = tl.constexpr(1.4426950408889634)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_tokens num_v_heads stride_gb stride_gh".split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_gate(
    # inputs
    g,  # [.., K] f32 or bf16, through strides
    A_log,  # [HV] f32 or None
    dt_bias,  # [HV, K] f32 or None
    chunks,  # [Nc, 4] i32
    # outputs
    gk,  # [B, HV, T, K] f32, log2
    # scalars
    num_tasks,  # Nc * HV * column tiles
    num_tokens,
    num_v_heads,
    lower_bound,
    # strides in elements: batch entry (b), token (t), head (h)
    stride_gb,
    stride_gt,
    stride_gh,
    # dimensions
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    # 0 activated already, 1 softplus, 2 bounded sigmoid
    GATE: tl.constexpr,
):
    """Write the cumulative gates of all chunks."""
    COLUMN_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    o_t = tl.arange(0, CHUNK)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_hv = task // COLUMN_TILES % num_v_heads
        i_b, i_t, valid = chunk_place(chunks, task // COLUMN_TILES // num_v_heads)
        o_k = task % COLUMN_TILES * BLOCK_K + tl.arange(0, BLOCK_K)
        m_k = o_k < K
        m_g = (o_t < valid)[:, None] & m_k[None, :]
        p_g = g + token_base(i_b, i_t, i_hv, stride_gb, stride_gt, stride_gh)
        b_g = tl.load(p_g + o_t[:, None] * stride_gt + o_k[None, :], mask=m_g, other=0.0)
        b_a = b_g.to(tl.float32)
        if GATE != 0:
            if dt_bias is not None:
                b_a += tl.load(dt_bias + i_hv * K + o_k, mask=m_k, other=0.0)[None, :]
            rate = tl.exp(tl.load(A_log + i_hv))
            b_a = activate(b_a, rate, lower_bound, GATE)
        row = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens)
        b_gk = tl.cumsum(b_a, 0) * RCP_LN2
        tl.store(gk + row * K + o_t[:, None] * K + o_k[None, :], b_gk, mask=m_g)
