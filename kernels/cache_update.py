"""Write the keys and values of new tokens into the pages of a cache.

A pure vector kernel. One task is a token: the rows of all its heads go to slot ``s``, which lies in
page ``s // page_size`` at place ``s % page_size``. A token with a slot outside of the cache, -1
above all, is padding and leaves the cache as it is. Tokens of one call must have different slots.
"""

import triton
import triton.language as tl

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "num_tokens num_slots num_heads head_dim head_dim_v page_size stride_xt stride_yt "
    "stride_kb stride_kn stride_kt stride_vb stride_vn stride_vt"
).split()


@triton.jit
def _copy_heads(
    p_source,
    p_target,
    num_heads,
    columns,
    stride_source,
    stride_target,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Copy one row per head, converted to the dtype of the cache."""
    o_d = tl.arange(0, BLOCK_D)
    for first in range(0, num_heads, BLOCK_N):
        o_n = first + tl.arange(0, BLOCK_N)
        m_rows = (o_n < num_heads)[:, None] & (o_d < columns)[None, :]
        # heads of a large cache may lie far apart
        o_head = o_n.to(tl.int64)[:, None]
        b_rows = tl.load(p_source + o_head * stride_source + o_d[None, :], mask=m_rows, other=0.0)
        tl.store(
            p_target + o_head * stride_target + o_d[None, :],
            b_rows.to(p_target.dtype.element_ty),
            mask=m_rows,
        )


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def cache_update(
    # inputs
    key,  # rows [T, Nkv, D], last dimension dense
    value,  # rows [T, Nkv, Dv], likewise
    slot_mapping,  # [T] i32/i64
    # outputs, in place
    k_pages,  # [P, Nkv, page, D], last dimension dense
    v_pages,  # [P, Nkv, page, Dv], likewise
    # scalars
    num_tokens,
    num_slots,  # P * page
    num_heads,
    head_dim,
    head_dim_v,
    page_size,
    # strides in elements: token (t) and head (n) of key (x) and value (y); page (b), head (n) and
    # token (t) of the cache
    stride_xt,
    stride_xn,
    stride_yt,
    stride_yn,
    stride_kb,
    stride_kn,
    stride_kt,
    stride_vb,
    stride_vn,
    stride_vt,
    # dimensions
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
):
    """Write one token after the other; programs share the tokens."""
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        slot = tl.load(slot_mapping + token).to(tl.int64)
        if (slot >= 0) & (slot < num_slots):
            row = tl.cast(token, tl.int64)
            page = slot // page_size
            place = slot % page_size
            _copy_heads(
                key + row * stride_xt,
                k_pages + page * stride_kb + place * stride_kt,
                num_heads, head_dim, stride_xn, stride_kn, BLOCK_N, D,
            )  # fmt: skip
            _copy_heads(
                value + row * stride_yt,
                v_pages + page * stride_vb + place * stride_vt,
                num_heads, head_dim_v, stride_yn, stride_vn, BLOCK_N, DV,
            )  # fmt: skip
