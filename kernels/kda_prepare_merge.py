"""Phase 2 of ``chunk_kda_fwd``, Prepare, merge: the inverse of a block from those of its halves.

``[[X1, 0], [-X2 L21 X1, X2]]``, all products in fp32. The quadrant is refined once by what it
leaves of its equation, ``Y <- Y + X2 (L21 X1 - (I + L22) Y)``: a product with X2 alone loses a
digit where keys hardly differ. One task is one block of 2 HALF rows of one chunk and value head.
The last merge writes Akk, one before it fp32 in place.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_tokens num_v_heads".split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_prepare_merge(
    # inputs
    Lkk,  # [B, HV, T, CHUNK] f32, zero on the diagonal and above
    inverse,  # [B, HV, T, CHUNK] f32, of the halves
    chunks,  # [Nc, 4] i32
    # outputs
    merged,  # [B, HV, T, CHUNK]: Akk, or inverse itself
    # scalars
    num_tasks,  # Nc * HV * blocks
    num_tokens,
    num_v_heads,
    # dimensions
    CHUNK: tl.constexpr,
    HALF: tl.constexpr,
):
    """Write all four quadrants of every block."""
    BLOCKS: tl.constexpr = CHUNK // (2 * HALF)
    o_r = tl.arange(0, HALF)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_unit = task // BLOCKS
        first = (task % BLOCKS) * (2 * HALF)
        i_hv = i_unit % num_v_heads
        i_b, i_t, valid = chunk_place(chunks, i_unit // num_v_heads)
        row = head_major_row(i_b, i_t + first, i_hv, num_v_heads, num_tokens)
        rows = valid - first
        p_upper = row * CHUNK + first + o_r[:, None] * CHUNK + o_r[None, :]
        p_lower = p_upper + HALF * CHUNK
        m_upper = (o_r < rows)[:, None]
        m_lower = (o_r < rows - HALF)[:, None]
        b_x1 = tl.load(inverse + p_upper, mask=m_upper, other=0.0)
        b_x2 = tl.load(inverse + p_lower + HALF, mask=m_lower, other=0.0)
        b_l21 = tl.load(Lkk + p_lower, mask=m_lower, other=0.0)
        b_l22 = tl.load(Lkk + p_lower + HALF, mask=m_lower, other=0.0)
        b_lx = tl.dot(b_l21, b_x1, input_precision="ieee")
        b_y = tl.dot(b_x2, b_lx, input_precision="ieee")
        b_rest = b_lx - b_y - tl.dot(b_l22, b_y, input_precision="ieee")
        b_y += tl.dot(b_x2, b_rest, input_precision="ieee")
        dtype = merged.dtype.element_ty
        tl.store(merged + p_upper, b_x1.to(dtype), mask=m_upper)
        tl.store(merged + p_upper + HALF, tl.zeros([HALF, HALF], dtype), mask=m_upper)
        tl.store(merged + p_lower, (-b_y).to(dtype), mask=m_lower)
        tl.store(merged + p_lower + HALF, b_x2.to(dtype), mask=m_lower)
