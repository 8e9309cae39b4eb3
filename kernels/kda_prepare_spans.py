"""Phase 2 of ``chunk_kda_fwd``, Prepare, spans: which blocks of an unbounded gate are steep.

A block of 16 rows is steep if a gate falls by more inside it than fp32 holds as one exponent; then
``kda_prepare_diagonal`` takes it apart. All others are what a bounded gate has everywhere, and
``kda_prepare_scores`` writes them. A pure vector kernel; one task is one chunk of one value head.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row

# rows of a block, and the largest exponent inside one, that of a bounded gate
BLOCK_ROWS = tl.constexpr(16)
LARGEST_SPAN = tl.constexpr(108.0)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_tokens num_v_heads".split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_prepare_spans(
    # inputs
    gk,  # [B, HV, T, K] f32
    chunks,  # [Nc, 4] i32
    # outputs
    is_steep,  # [Nc, HV, CHUNK / 16] i32: 0 or 1
    # scalars
    num_tasks,  # Nc * HV
    num_tokens,
    num_v_heads,
    # dimensions
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compare the first and the last row of every block."""
    BLOCKS: tl.constexpr = CHUNK // BLOCK_ROWS
    o_b = tl.arange(0, BLOCKS)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_hv = task % num_v_heads
        i_b, i_t, valid = chunk_place(chunks, task // num_v_heads)
        p_gk = gk + head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens) * K
        m_some = (o_b < (valid + BLOCK_ROWS - 1) // BLOCK_ROWS)[:, None]
        m_whole = (o_b < valid // BLOCK_ROWS)[:, None]
        b_span = tl.zeros([BLOCKS], tl.float32)
        for s in range(0, K, BLOCK_K):
            o_k = s + tl.arange(0, BLOCK_K)
            m_k = (o_k < K)[None, :]
            p_first = p_gk + (o_b * (BLOCK_ROWS * K))[:, None] + o_k[None, :]
            b_first = tl.load(p_first, mask=m_some & m_k, other=0.0)
            p_last = p_first + (BLOCK_ROWS - 1) * K
            b_last = tl.load(p_last, mask=m_whole & m_k, other=0.0)
            # the last block may end with the chunk
            b_tail = tl.load(p_gk + (valid - 1) * K + o_k, mask=o_k < K, other=0.0)
            b_last = tl.where(m_whole, b_last, b_tail[None, :])
            b_span = tl.maximum(b_span, tl.max(b_first - b_last, 1))
        b_steep = tl.where(b_span <= LARGEST_SPAN, 0, 1)
        tl.store(is_steep + task * BLOCKS + o_b, b_steep)
