"""Phase 2 of ``chunk_kda_fwd``, Prepare, merge: the inverse of a chunk from those of its halves.

``Akk = [[X1, 0], [-X2 L21 X1, X2]]``; both products in fp32. One task is one chunk of one value
head.
"""

import triton
import triton.language as tl

from ._chunks import chunk_place, head_major_row

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_tokens num_v_heads".split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_prepare_merge(
    # inputs
    Lkk,  # [B, HV, T, 2 HALF] f32, below the diagonal
    inverse,  # [B, HV, T, 2 HALF] f32, of the diagonal blocks
    chunks,  # [Nc, 4] i32
    # outputs
    Akk,  # [B, HV, T, 2 HALF] 16-bit
    # scalars
    num_tasks,  # Nc * HV
    num_tokens,
    num_v_heads,
    # dimensions
    HALF: tl.constexpr,
):
    """Write all four quadrants."""
    CHUNK: tl.constexpr = 2 * HALF
    o_r = tl.arange(0, HALF)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_hv = task % num_v_heads
        i_b, i_t, valid = chunk_place(chunks, task // num_v_heads)
        row = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens)
        p_upper = row * CHUNK + o_r[:, None] * CHUNK + o_r[None, :]
        p_lower = p_upper + HALF * CHUNK
        m_upper = (o_r < valid)[:, None]
        m_lower = (o_r < valid - HALF)[:, None]
        b_x1 = tl.load(inverse + p_upper, mask=m_upper, other=0.0)
        b_x2 = tl.load(inverse + p_lower + HALF, mask=m_lower, other=0.0)
        b_l = tl.load(Lkk + p_lower, mask=m_lower, other=0.0)
        b_lx = tl.dot(b_l, b_x1, input_precision="ieee")
        b_x21 = tl.dot(b_x2, b_lx, input_precision="ieee")
        dtype = Akk.dtype.element_ty
        tl.store(Akk + p_upper, b_x1.to(dtype), mask=m_upper)
        tl.store(Akk + p_upper + HALF, tl.zeros([HALF, HALF], dtype), mask=m_upper)
        tl.store(Akk + p_lower, (-b_x21).to(dtype), mask=m_lower)
        tl.store(Akk + p_lower + HALF, b_x2.to(dtype), mask=m_lower)
