"""Phase 2 of ``chunk_kda_fwd``, Prepare, inverse: ``(I + Lkk)^-1`` of diagonal blocks.

Forward substitution in fp32, one row after the other: ``x_r = e_r - sum_{j < r} L_rj x_j``. A pure
vector kernel; one task is one chunk of one value head, whose blocks of BLOCK_R rows go row by row
together. Where there is one block the result is Akk; else ``kda_prepare_merge`` joins them.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_tokens num_v_heads".split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_prepare_inverse(
    # inputs
    Lkk,  # [B, HV, T, CHUNK] f32, of which the part below the diagonal counts
    chunks,  # [Nc, 4] i32
    # outputs
    inverse,  # [B, HV, T, CHUNK]: Akk, or f32 for the merge
    # scalars
    num_tasks,  # Nc * HV
    num_tokens,
    num_v_heads,
    # dimensions
    CHUNK: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Invert every diagonal block."""
    BLOCKS: tl.constexpr = CHUNK // BLOCK_R
    # from a block to the next along the diagonal
    STEP: tl.constexpr = BLOCK_R * (CHUNK + 1)
    o_b = tl.arange(0, BLOCKS)
    o_r = tl.arange(0, BLOCK_R)
    i = o_r[None, :, None]
    j = o_r[None, None, :]
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_hv = task % num_v_heads
        i_b, i_t, valid = chunk_place(chunks, task // num_v_heads)
        offset = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens) * CHUNK
        b_x = tl.zeros([BLOCKS, BLOCK_R, BLOCK_R], tl.float32) + (i == j).to(tl.float32)
        for r in range(1, tl.minimum(valid, BLOCK_R)):
            # blocks that have this row, columns before it
            m_b = o_b < (valid - r + BLOCK_R - 1) // BLOCK_R
            m_l = m_b[:, None] & (o_r < r)[None, :]
            p_l = Lkk + offset + r * CHUNK + (o_b * STEP)[:, None] + o_r[None, :]
            b_l = tl.load(p_l, mask=m_l, other=0.0)
            known = tl.sum(b_l[:, :, None] * b_x, 1)
            b_x = tl.where(i == r, b_x - known[:, None, :], b_x)
        for n in range(0, BLOCKS):
            b_block = tl.sum(tl.where((o_b == n)[:, None, None], b_x, 0.0), 0)
            p_block = inverse + offset + n * STEP + o_r[:, None] * CHUNK + o_r[None, :]
            m_r = (o_r < valid - n * BLOCK_R)[:, None]
            tl.store(p_block, b_block.to(inverse.dtype.element_ty), mask=m_r)
