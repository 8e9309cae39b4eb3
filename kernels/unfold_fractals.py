"""Copy pages of fractals (PA_NZ) into pages of rows (PA_BNBD), those keys that a call attends to.

A pure vector kernel, run before the attention where the matrix cores cannot take fractals as they
lie. One task is ``step`` keys of one head, K and V: a tile of fractals goes in and the same tile
comes out as dense rows. Programs share the tasks of all sequences; the lengths are read on the
device. What no sequence attends to is neither read nor written: pages behind the last key, keys
behind it on its page, pages before a left window.
"""

import triton
import triton.language as tl

from ._keys import FRACTAL

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "batch_size num_pages num_heads head_dim head_dim_v page_size own_pages step "
    "seqlen_kv reach stride_table stride_kb stride_kn stride_vb stride_vn"
).split()


@triton.jit
def _copy_tile(
    p_source,
    p_target,
    keys,
    columns,
    stride_s,
    stride_d,
    BLOCK_S: tl.constexpr,
    D: tl.constexpr,
):
    """Copy the first ``keys`` keys of a tile to dense rows of ``columns`` elements."""
    o_s = tl.arange(0, BLOCK_S)[:, None, None]
    o_f = tl.arange(0, D // FRACTAL)[None, :, None]
    o_e = tl.arange(0, FRACTAL)[None, None, :]
    m_tile = (o_s < keys) & (o_f < columns // FRACTAL)
    b_tile = tl.load(p_source + o_s * stride_s + o_f * stride_d + o_e, mask=m_tile)
    tl.store(p_target + o_s * columns + o_f * FRACTAL + o_e, b_tile, mask=m_tile)


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def unfold_fractals(
    # inputs
    k,  # pages [P, Nkv, D/16, page, 16], last dimension dense
    v,  # pages [P, Nkv, Dv/16, page, 16], likewise
    block_table,  # page ids [B, pages], i32
    seqused_kv,  # [B] i32
    # outputs
    k_rows,  # pages [n, Nkv, page, D], dense
    v_rows,  # pages [n, Nkv, page, Dv], dense
    # scalars
    batch_size,
    num_pages,  # P
    num_heads,
    head_dim,
    head_dim_v,
    page_size,
    own_pages,  # pages of a sequence in a table of their own; 0 where pages keep their ids
    step,  # keys of a task, a divisor of page_size, at most BLOCK_S
    seqlen_kv,  # keys that a row of the block table has room for
    reach,  # keys before the end of a sequence that its first query may see
    # strides in elements: row of the block table; page (b), head (n), key (s), fractal (d)
    stride_table,
    stride_kb,
    stride_kn,
    stride_ks,
    stride_kd,
    stride_vb,
    stride_vn,
    stride_vs,
    stride_vd,
    # dimensions
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Copy task after task; page ``i`` of sequence ``b`` keeps its id or becomes page ``b, i``."""
    programs = tl.num_programs(0)
    # the first task of a sequence that is this program's: tasks go round
    start = tl.program_id(0)
    for b in range(batch_size):
        length = tl.minimum(tl.load(seqused_kv + b), seqlen_kv)
        first = tl.maximum(length - reach, 0) // page_size * page_size
        tasks = (tl.maximum(length - first, 0) + step - 1) // step * num_heads
        row = tl.cast(b, tl.int64)
        for task in range(start, tasks, programs):
            s = first + task // num_heads * step
            head = (task % num_heads).to(tl.int64)
            column = s // page_size
            place = (s % page_size).to(tl.int64)
            page = tl.load(block_table + row * stride_table + column).to(tl.int64)
            if (page >= 0) & (page < num_pages):
                target = tl.where(own_pages > 0, row * own_pages + column, page)
                target = (target * num_heads + head) * page_size + place
                keys = tl.minimum(length - s, step)
                _copy_tile(
                    k + page * stride_kb + head * stride_kn + place * stride_ks,
                    k_rows + target * head_dim,
                    keys, head_dim, stride_ks, stride_kd, BLOCK_S, D,
                )  # fmt: skip
                _copy_tile(
                    v + page * stride_vb + head * stride_vn + place * stride_vs,
                    v_rows + target * head_dim_v,
                    keys, head_dim_v, stride_vs, stride_vd, BLOCK_S, DV,
                )  # fmt: skip
        start = (start - tasks) % programs
        start = tl.where(start < 0, start + programs, start)
