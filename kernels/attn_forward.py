"""Phase 1 of ``flash_attn``: every core walks its stretch of the plan and attends row blocks.

The plan (``fa_triton.planner``) puts all row blocks of a batch on a line, ordered by ``(bn, m)``:
``bn = b * num_units + n`` names a batch entry and a head unit (``_rows.py``), ``m`` a block of
``block_q`` rows. Program ``pid`` owns one segment, from ``(bn, m, s2)`` up to ``(bn, m, s2)``; only
its first and its last row block can be cut along the keys. A cut row block leaves un-normalised
sums in a workspace slot for ``attn_combine``, every other one is finished here. A row block is
walked in tiles of BLOCK_Q rows.

Keys are dense rows or pages of a cache (``_keys.py``); the loop over them is ``_attend.py``. All
loads and stores are affine 2-D tiles, but for pages cut into fractals (PA_NZ).

Device lengths clamp the walk, so a plan made from upper bounds is conservative, never wrong.
"""

import triton
import triton.language as tl

from ._attend import attend
from ._cache import NO_SCALES, PER_CHANNEL, PER_TOKEN, offset_logits, scale_queries, scale_sums
from ._int8_terms import split_terms
from ._rows import row_offset, row_place, row_values, sequence_bounds
from ._softmax import MAX_START, add_sink, log_sum_exp, normalise

HEADER_WORDS = tl.constexpr(16)
SEGMENT_WORDS = tl.constexpr(16)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "block_q block_kv num_aic slots_per_section seqlen_q seqlen_kv head_dim head_dim_v win_left "
    "win_right num_units units_per_kv page_size stride_table stride_qb stride_qt stride_qn "
    "stride_kb stride_kn stride_kd stride_vb stride_vn stride_vd stride_ob stride_ot stride_on "
    "stride_lb stride_lt stride_ln stride_head stride_xb stride_xn stride_xr stride_mb stride_mn "
    "stride_mr stride_cb stride_cn mask_fill"
).split()


@triton.jit
def _tile_rows(
    bn,
    row,
    block_q,
    cu_seqlens_q,
    seqused_q,
    seqlen_q,
    num_units,
    GROUP: tl.constexpr,
    HEAD_MAJOR: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    """Return (rows of the unit, end of the tile that starts at ``row``)."""
    _, len_q = sequence_bounds(cu_seqlens_q, seqused_q, bn // num_units, seqlen_q)
    rows = len_q * GROUP
    _, _, affine_end = row_place(bn % num_units, row, len_q, GROUP, HEAD_MAJOR)
    block_end = (row // block_q + 1) * block_q
    return rows, tl.minimum(tl.minimum(block_end, affine_end), tl.minimum(rows, row + BLOCK_Q))


@triton.jit
def _next_tile(bn, row, row_end, rows):
    """Return (unit, row) after a tile that ends at ``row_end`` of ``rows``."""
    is_done = row_end >= rows
    return tl.where(is_done, bn + 1, bn), tl.where(is_done, 0, row_end)


@triton.jit
def _first_position(
    block_first, rows, block_q, len_q, GROUP: tl.constexpr, HEAD_MAJOR: tl.constexpr
):
    """Return the smallest query position of the row block that starts at row ``block_first``."""
    position = block_first // GROUP
    if HEAD_MAJOR:
        length = tl.maximum(len_q, 1)
        block_last = tl.minimum(block_first + block_q, rows) - 1
        one_head = block_first // length == block_last // length
        position = tl.where(one_head, block_first % length, 0)
    return position


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def attn_forward(
    # inputs, fp16 | bf16 | fp32; last dimension dense
    q,
    k,
    v,
    cu_seqlens_q,  # [B + 1] i32 or None
    cu_seqlens_kv,  # [B + 1] i32 or None
    seqused_q,  # [B] i32 or None
    seqused_kv,  # [B] i32 or None
    block_table,  # [B, stride_table] i32 page ids or None
    sinks,  # f32 or None, per head as _rows.row_values reads them
    alibi_slopes,  # f32 or None, likewise
    # outputs
    out,  # rows as in q
    softmax_lse,  # f32 or None, natural log
    part_acc,  # [slots, block_q, DV] f32
    part_max,  # [slots, block_q] f32
    part_sum,  # [slots, block_q] f32
    # plan
    plan,  # i32 words, fa_triton.planner.table
    block_q,
    block_kv,
    num_aic,
    slots_per_section,
    # scalars
    softmax_scale,  # times 2 / softcap with HAS_SOFTCAP
    softcap,
    seqlen_q,
    seqlen_kv,
    head_dim,  # columns of q and k, at most D
    head_dim_v,  # columns of v and out, at most DV
    win_left,
    win_right,
    num_units,  # head units of a batch entry
    units_per_kv,  # head units that share one key/value head
    page_size,  # tokens of a page
    # strides in elements: batch entry or page (b), packed token (t), head unit (n), row (r),
    # key (s), fractal of the head dimension (d)
    stride_table,
    stride_qb,
    stride_qt,
    stride_qn,
    stride_qr,
    stride_kb,
    stride_kn,
    stride_ks,
    stride_kd,
    stride_vb,
    stride_vn,
    stride_vs,
    stride_vd,
    stride_ob,
    stride_ot,
    stride_on,
    stride_or,
    stride_lb,
    stride_lt,
    stride_ln,
    stride_lr,
    stride_head,  # units of sinks and of alibi_slopes
    # dimensions
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    KV_STEP: tl.constexpr,
    # questions
    HEAD_MAJOR: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_EXACT_CAP: tl.constexpr,
    HAS_PADDED_DIM: tl.constexpr,
    HAS_CUT_FLAGS: tl.constexpr,
    IS_NZ: tl.constexpr,
    LSE_HAS_SINK: tl.constexpr,
    PEEL_INTERIOR: tl.constexpr,
    # a cache beside the plain one, absent in flash_attn: where the keys of a sequence lie
    kv_places=None,  # [B, 4] i64: elements from k and v to the first keys, strides of their heads
    first_columns=None,  # [B] i32: column of bias, mask and scales of that key
    # inputs per key, dense along keys
    bias=None,  # added to the logits
    key_mask=None,  # i8, not 0: hidden, the logit is mask_fill
    mask_fill=None,
    stride_xb=None,
    stride_xn=None,
    stride_xr=None,
    stride_mb=None,
    stride_mn=None,
    stride_mr=None,
    # f32 scales and offsets of stored integers, [Nkv, D] per channel, or per token and page
    k_scale=None,
    k_offset=None,
    v_scale=None,
    v_offset=None,
    stride_cb=None,
    stride_cn=None,
    KV_SCALES: tl.constexpr = NO_SCALES,
    HAS_MASK_ROWS: tl.constexpr = False,
    HAS_INT8_TERMS: tl.constexpr = False,
):
    """Attend the row blocks of one plan segment: one program per segment, no synchronisation."""
    pid = tl.program_id(0)
    p_segment = plan + HEADER_WORDS + pid * SEGMENT_WORDS
    bn_first = tl.load(p_segment)
    row_first = tl.load(p_segment + 1) * block_q
    first_s2 = tl.load(p_segment + 2)
    bn_last = tl.load(p_segment + 3)
    row_last = tl.load(p_segment + 4) * block_q
    last_s2 = tl.load(p_segment + 5)
    slot = tl.load(p_segment + 6) + (pid // num_aic) * slots_per_section
    if HAS_CUT_FLAGS:
        flags = tl.load(p_segment + 8)
        may_cut_first = flags & 1
        may_cut_last = flags >> 1
    else:
        may_cut_first = (first_s2 > 0).to(tl.int32)
        may_cut_last = (last_s2 > 0).to(tl.int32)
    first_key = first_s2 * block_kv
    last_key = last_s2 * block_kv
    # rows of bn_last before row_stop belong to this program
    row_stop = row_last + may_cut_last * block_q

    # the tiles are counted first: a `for` around them keeps K and V double-buffered in L1, a
    # `while` does not
    tiles = 0
    bn = bn_first
    row = row_first
    while (bn < bn_last) | ((bn == bn_last) & (row < row_stop)):
        rows, row_end = _tile_rows(
            bn,
            row,
            block_q,
            cu_seqlens_q,
            seqused_q,
            seqlen_q,
            num_units,
            GROUP,
            HEAD_MAJOR,
            BLOCK_Q,
        )
        tiles += 1
        bn, row = _next_tile(bn, row, row_end, rows)

    o_r = tl.arange(0, BLOCK_Q)
    o_key = tl.arange(0, BLOCK_KV)
    o_d = tl.arange(0, D)
    o_dv = tl.arange(0, DV)
    bn = bn_first
    row = row_first
    for _ in range(tiles):
        b = bn // num_units
        first_q, len_q = sequence_bounds(cu_seqlens_q, seqused_q, b, seqlen_q)
        first_kv, len_kv = sequence_bounds(cu_seqlens_kv, seqused_kv, b, seqlen_kv)
        rows, row_end = _tile_rows(
            bn,
            row,
            block_q,
            cu_seqlens_q,
            seqused_q,
            seqlen_q,
            num_units,
            GROUP,
            HEAD_MAJOR,
            BLOCK_Q,
        )
        unit, unit_row, _ = row_place(bn % num_units, row, len_q, GROUP, HEAD_MAJOR)
        valid = tl.maximum(row_end - row, 0)
        block_first = row // block_q * block_q

        # query positions of the tile
        if HEAD_MAJOR or GROUP == 1:
            pos = unit_row
            pos_last = unit_row + valid - 1
            o_pos = o_r.to(tl.float32)
        else:
            pos = row // GROUP
            pos_last = (row_end - 1) // GROUP
            # floor((row % GROUP + r) / GROUP), exact; an integer division would be a scalar loop
            o_pos = tl.floor(((o_r + row % GROUP).to(tl.float32) + 0.5) * (1.0 / GROUP))
        rel = o_key.to(tl.float32)[None, :] - o_pos[:, None]

        # keys [lo, hi) are visible to at least one row of the tile
        delta = len_kv - len_q
        diagonal = pos + delta
        right = diagonal + win_right + 1
        left = diagonal - win_left
        lo = 0
        hi = len_kv
        if HAS_RIGHT:
            hi = tl.minimum(len_kv, pos_last + delta + win_right + 1)
        if HAS_LEFT:
            lo = tl.maximum(left, 0) // KV_STEP * KV_STEP

        # the plan's cuts hold for all tiles of a row block
        is_first = may_cut_first * ((bn == bn_first) & (block_first == row_first)).to(tl.int32)
        is_last = may_cut_last * ((bn == bn_last) & (block_first == row_last)).to(tl.int32)
        if HAS_LEFT and not HAS_CUT_FLAGS:
            position = _first_position(block_first, rows, block_q, len_q, GROUP, HEAD_MAJOR)
            block_lo = tl.maximum(position + delta - win_left, 0) // block_kv * block_kv
            is_first = is_first * (first_key > block_lo).to(tl.int32)
            # a segment that ends at the first visible block of a row block has nothing of it
            has_part = (last_key > block_lo).to(tl.int32)
            valid = valid * (1 - is_last * (1 - has_part))
            is_last = is_last * has_part
        s_lo = tl.maximum(lo, is_first * first_key)
        s_hi = tl.where(is_last > 0, tl.minimum(hi, last_key), hi)
        s_hi = tl.where(valid > 0, s_hi, s_lo)

        base_q = row_offset(b, first_q, unit, unit_row, stride_qb, stride_qt, stride_qn, stride_qr)
        m_row = o_r < valid
        m_q = m_row[:, None]
        m_out = m_row[:, None]
        if HAS_PADDED_DIM:
            m_q = m_q & (o_d < head_dim)[None, :]
            m_out = m_out & (o_dv < head_dim_v)[None, :]
        p_q = q + base_q + o_r[:, None] * stride_qr + o_d[None, :]
        b_q = tl.load(p_q, mask=m_q, other=0.0)
        b_slope = None
        if alibi_slopes is not None:
            b_slope = row_values(alibi_slopes, unit, unit_row, o_r, stride_head, GROUP, HEAD_MAJOR)

        kv = (unit // units_per_kv).to(tl.int64)
        pages = None
        if kv_places is None:
            p_k = k + kv * stride_kn
            p_v = v + kv * stride_vn
            if block_table is None:
                p_k += b.to(tl.int64) * stride_kb + first_kv.to(tl.int64) * stride_ks
                p_v += b.to(tl.int64) * stride_vb + first_kv.to(tl.int64) * stride_vs
            else:
                pages = block_table + b.to(tl.int64) * stride_table
        else:
            p_place = kv_places + b * 4
            p_k = k + tl.load(p_place) + kv * tl.load(p_place + 2)
            p_v = v + tl.load(p_place + 1) + kv * tl.load(p_place + 3)
        column = b * 0
        if first_columns is not None:
            column = tl.load(first_columns + b)
        p_bias = None
        if bias is not None:
            base_x = row_offset(b, column, unit, unit_row, stride_xb, 1, stride_xn, stride_xr)
            p_bias = bias + base_x
        p_mask = None
        if key_mask is not None:
            base_m = row_offset(b, column, unit, unit_row, stride_mb, 1, stride_mn, stride_mr)
            p_mask = key_mask + base_m
        b_shift = None
        p_k_scale = None
        p_k_offset = None
        p_v_scale = None
        p_v_offset = None
        if KV_SCALES == PER_CHANNEL:
            b_scaled = scale_queries(b_q, k_scale, kv, o_d, head_dim)
            if k_offset is not None:
                b_shift = offset_logits(b_scaled, k_offset, kv, o_d, head_dim)
            b_q = b_scaled if HAS_INT8_TERMS else b_scaled.to(b_q.dtype)
        if KV_SCALES == PER_TOKEN:
            # rows of scales per head, of a sequence or of a page
            base_c = kv * stride_cn + column
            if block_table is None:
                base_c += b.to(tl.int64) * stride_cb
            p_k_scale = k_scale + base_c
            p_v_scale = v_scale + base_c
            if k_offset is not None:
                p_k_offset = k_offset + base_c
                p_v_offset = v_offset + base_c
                b_shift = tl.sum(b_q.to(tl.float32), 1)
        b_q_lo = None
        q_unit = None
        if HAS_INT8_TERMS:
            b_q, b_q_lo, q_unit = split_terms(b_q.to(tl.float32))

        m = tl.full([BLOCK_Q], MAX_START, tl.float32)
        l = tl.zeros([BLOCK_Q], tl.float32)
        acc = tl.zeros([BLOCK_Q, DV], tl.float32)
        s_mid = s_lo
        if PEEL_INTERIOR:
            full_hi = s_hi
            if HAS_RIGHT:
                full_hi = tl.minimum(s_hi, right)
            s_mid = s_lo + tl.maximum(full_hi - s_lo, 0) // KV_STEP * KV_STEP
            m, l, acc = attend(
                b_q, b_q_lo, q_unit, m, l, acc, p_k, p_v, pages, s_lo, s_mid, page_size,
                stride_kb, stride_ks, stride_kd, stride_vb, stride_vs, stride_vd, head_dim,
                head_dim_v, softmax_scale, softcap, b_slope, rel, diagonal, right, left, m_row,
                o_r, p_bias, stride_xr, p_mask, stride_mr, mask_fill, b_shift, p_k_scale,
                p_k_offset, p_v_scale, p_v_offset, stride_cb, D, DV, BLOCK_KV, KV_STEP, HAS_RIGHT,
                HAS_LEFT, HAS_LIMIT, HAS_SOFTCAP, HAS_EXACT_CAP, HAS_PADDED_DIM, IS_NZ, True,
                HAS_MASK_ROWS, KV_SCALES, HAS_INT8_TERMS,
            )  # fmt: skip
        m, l, acc = attend(
            b_q, b_q_lo, q_unit, m, l, acc, p_k, p_v, pages, s_mid, s_hi, page_size, stride_kb,
            stride_ks, stride_kd, stride_vb, stride_vs, stride_vd, head_dim, head_dim_v,
            softmax_scale, softcap, b_slope, rel, diagonal, right, left, m_row, o_r, p_bias,
            stride_xr, p_mask, stride_mr, mask_fill, b_shift, p_k_scale, p_k_offset, p_v_scale,
            p_v_offset, stride_cb, D, DV, BLOCK_KV, KV_STEP, HAS_RIGHT, HAS_LEFT, HAS_LIMIT,
            HAS_SOFTCAP, HAS_EXACT_CAP, HAS_PADDED_DIM, IS_NZ, False, HAS_MASK_ROWS, KV_SCALES,
            HAS_INT8_TERMS,
        )  # fmt: skip
        if KV_SCALES == PER_CHANNEL:
            acc = scale_sums(acc, l, v_scale, v_offset, kv, o_dv, head_dim_v)

        is_cut = is_first + is_last
        if is_cut > 0:
            slot_row = slot.to(tl.int64) * block_q + (row - block_first)
            p_acc = part_acc + slot_row * DV + o_r[:, None] * DV + o_dv[None, :]
            tl.store(p_acc, acc, mask=m_row[:, None])
            tl.store(part_max + slot_row + o_r, m, mask=m_row)
            tl.store(part_sum + slot_row + o_r, l, mask=m_row)
        else:
            m_keys = m
            l_keys = l
            if sinks is not None:
                b_sink = row_values(sinks, unit, unit_row, o_r, stride_head, GROUP, HEAD_MAJOR)
                m, l, acc = add_sink(m, l, acc, b_sink)
                if LSE_HAS_SINK:
                    m_keys = m
                    l_keys = l
            base_o = row_offset(
                b, first_q, unit, unit_row, stride_ob, stride_ot, stride_on, stride_or
            )
            p_o = out + base_o + o_r[:, None] * stride_or + o_dv[None, :]
            tl.store(p_o, normalise(l, acc).to(out.dtype.element_ty), mask=m_out)
            if softmax_lse is not None:
                base_l = row_offset(
                    b, first_q, unit, unit_row, stride_lb, stride_lt, stride_ln, stride_lr
                )
                p_lse = softmax_lse + base_l + o_r * stride_lr
                tl.store(p_lse, log_sum_exp(m_keys, l_keys), mask=m_row)

        block_done = (row_end >= rows) | (row_end >= block_first + block_q)
        slot += ((is_cut > 0) & block_done).to(tl.int32)
        bn, row = _next_tile(bn, row, row_end, rows)
