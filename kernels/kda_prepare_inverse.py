"""Phase 2 of ``chunk_kda_fwd``, Prepare, inverse: ``(I + Lkk)^-1`` of diagonal blocks.

Forward substitution in fp32, one row after the other: ``x_r = e_r - sum_{j < r} L_rj x_j``. A pure
vector kernel; one task is a block of BLOCK_R rows of one chunk and value head. Where that is the
whole chunk the result is Akk; else ``kda_prepare_merge`` joins the blocks.
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
    num_tasks,  # Nc * HV * row blocks
    num_tokens,
    num_v_heads,
    # dimensions
    CHUNK: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Invert every diagonal block."""
    ROW_BLOCKS: tl.constexpr = CHUNK // BLOCK_R
    o_r = tl.arange(0, BLOCK_R)
    i = o_r[:, None]
    j = o_r[None, :]
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        i_unit = task // ROW_BLOCKS
        first = (task % ROW_BLOCKS) * BLOCK_R
        i_hv = i_unit % num_v_heads
        i_b, i_t, valid = chunk_place(chunks, i_unit // num_v_heads)
        row = head_major_row(i_b, i_t + first, i_hv, num_v_heads, num_tokens)
        offset = row * CHUNK + first
        rows = tl.minimum(valid - first, BLOCK_R)
        b_x = (i == j).to(tl.float32)
        for r in range(1, rows):
            b_l = tl.load(Lkk + offset + r * CHUNK + o_r)
            b_l = tl.where(o_r < r, b_l, 0.0)
            known = tl.sum(b_l[:, None] * b_x, 0)
            b_x = tl.where(i == r, b_x - known[None, :], b_x)
        b_x = b_x.to(inverse.dtype.element_ty)
        tl.store(inverse + offset + i * CHUNK + j, b_x, mask=i < rows)
