"""Write the keys and values of new tokens into a cache of eight bits, quantised per token and head.

A pure vector kernel. One task is a token; a row ``x`` of one of its heads becomes

    scale = max(max |x| / 127, 1e-6)        n = round(x / scale)        x = n scale

with halves away from zero. Rows and scales go to slot ``s``: page ``s // page_size``, place
``s % page_size``. A token with a slot outside of the cache, -1 above all, is padding and leaves the
cache as it is. Tokens of one call must have different slots.
"""

import triton
import triton.language as tl

MAX_INTEGER = tl.constexpr(127.0)
LEAST_SCALE = tl.constexpr(1.0e-6)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "num_tokens num_slots num_heads head_dim head_dim_v page_size stride_xt stride_yt "
    "stride_kb stride_kn stride_kt stride_vb stride_vn stride_vt stride_cb stride_cn"
).split()


@triton.jit
def _quantise_heads(
    p_source,
    p_target,
    p_scale,
    num_heads,
    columns,
    stride_source,
    stride_target,
    stride_scale,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Quantise one row per head and store it with its scale."""
    o_d = tl.arange(0, BLOCK_D)
    for first in range(0, num_heads, BLOCK_N):
        o_n = first + tl.arange(0, BLOCK_N)
        m_n = o_n < num_heads
        m_rows = m_n[:, None] & (o_d < columns)[None, :]
        # heads of a large cache may lie far apart
        o_head = o_n.to(tl.int64)
        b_rows = tl.load(
            p_source + o_head[:, None] * stride_source + o_d[None, :], mask=m_rows, other=0.0
        ).to(tl.float32)
        b_scale = tl.maximum(tl.max(tl.abs(b_rows), 1) / MAX_INTEGER, LEAST_SCALE)
        b_units = b_rows * (1.0 / b_scale)[:, None]
        b_size = tl.minimum(tl.floor(tl.abs(b_units) + 0.5), MAX_INTEGER)
        b_integers = tl.where(b_units < 0.0, -b_size, b_size).to(tl.int8)
        tl.store(p_target + o_head[:, None] * stride_target + o_d[None, :], b_integers, mask=m_rows)
        tl.store(p_scale + o_head * stride_scale, b_scale, mask=m_n)


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def cache_update_int8(
    # inputs
    key,  # rows [T, Nkv, D], last dimension dense
    value,  # rows [T, Nkv, Dv], likewise
    slot_mapping,  # [T] i32/i64
    # outputs, in place
    k_pages,  # [P, Nkv, page, D] i8, last dimension dense
    v_pages,  # [P, Nkv, page, Dv] i8, likewise
    k_scale,  # [P, Nkv, page] f32, last dimension dense
    v_scale,  # [P, Nkv, page] f32, strides of k_scale
    # scalars
    num_tokens,
    num_slots,  # P * page
    num_heads,
    head_dim,
    head_dim_v,
    page_size,
    # strides in elements: token (t) and head (n) of key (x) and value (y); page (b), head (n) and
    # token (t) of the cache, page and head of the scales (c)
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
    stride_cb,
    stride_cn,
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
            o_scale = page * stride_cb + place
            _quantise_heads(
                key + row * stride_xt,
                k_pages + page * stride_kb + place * stride_kt,
                k_scale + o_scale,
                num_heads, head_dim, stride_xn, stride_kn, stride_cn, BLOCK_N, D,
            )  # fmt: skip
            _quantise_heads(
                value + row * stride_yt,
                v_pages + page * stride_vb + place * stride_vt,
                v_scale + o_scale,
                num_heads, head_dim_v, stride_yn, stride_vn, stride_cn, BLOCK_N, DV,
            )  # fmt: skip
