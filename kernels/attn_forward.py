"""Phase 1 of ``flash_attn``: every core walks its stretch of the plan and attends row blocks.

The plan (``fa_triton.planner``) puts all row blocks of a batch on a line, ordered by ``(bn, m)``:
``bn = b * num_units + n`` names a batch entry and a head unit (``_rows.py``), ``m`` a block of
``block_q`` rows. Program ``pid`` owns one segment, from ``(bn, m, s2)`` up to ``(bn, m, s2)``; only
its first and its last row block can be cut along the keys. A cut row block leaves un-normalised
sums in a workspace slot for ``attn_combine``, every other one is finished here. A row block is
walked in tiles of BLOCK_Q rows.

Recurrence over key tiles: ``m' = max(m, max s)``, ``p = e^(s - m')``,
``l' = l e^(m - m') + sum p``, ``acc' = acc e^(m - m') + p v``. Q, m, l and acc of a tile stay on
chip; all loads and stores are affine 2-D tiles.

Device lengths clamp the walk, so a plan made from upper bounds is conservative, never wrong.
"""

import triton
import triton.language as tl

from ._rows import row_offset, row_place, row_sinks, sequence_bounds
from ._softmax import MASKED, MAX_START, PROPAGATE, add_sink, log_sum_exp, normalise

HEADER_WORDS = tl.constexpr(16)
SEGMENT_WORDS = tl.constexpr(16)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "block_q block_kv num_aic slots_per_section seqlen_q seqlen_kv win_left win_right num_units "
    "units_per_kv stride_qb stride_qt stride_qn stride_kb stride_kn stride_vb stride_vn stride_ob "
    "stride_ot stride_on stride_lb stride_lt stride_ln stride_sink"
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


@triton.jit
def _hide(
    b_s,
    o_key,
    rel,
    right,
    left,
    limit,
    HAS_RIGHT: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
):
    """Hide keys outside ``left <= rel < right`` and at or past ``limit``.

    ``rel`` [M, N] is key minus position. A loop-invariant f32 tile against an integer scalar is one
    compare and one select; an i32 compare takes seven vector passes, and f32 scalar arithmetic in
    front of the compare loses the cube/vector pipeline.
    """
    if HAS_RIGHT:
        b_s = tl.where(rel < right.to(tl.float32), b_s, MASKED)
    if HAS_LEFT:
        b_s = tl.where(rel >= left.to(tl.float32), b_s, MASKED)
    if HAS_LIMIT:
        b_s = tl.where((o_key < limit)[None, :], b_s, MASKED)
    return b_s


@triton.jit
def _attend(
    b_q,
    p_k,
    p_v,
    stride_ks,
    stride_vs,
    s_lo,
    s_hi,
    right,
    left,
    rel,
    softmax_scale,
    m,
    l,
    acc,
    D: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    IS_INTERIOR: tl.constexpr,
):
    """Online softmax over keys ``[s_lo, s_hi)``; an interior has whole tiles and no right bound."""
    o_key = tl.arange(0, BLOCK_KV)
    o_d = tl.arange(0, D)
    for s in range(s_lo, s_hi, BLOCK_KV):
        m_key = ((s + o_key) < s_hi)[:, None]
        p_k_tile = p_k + (s + o_key)[:, None] * stride_ks + o_d[None, :]
        p_v_tile = p_v + (s + o_key)[:, None] * stride_vs + o_d[None, :]
        if IS_INTERIOR:
            b_k = tl.load(p_k_tile)
        else:
            b_k = tl.load(p_k_tile, mask=m_key, other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * softmax_scale
        b_s = _hide(
            b_s,
            o_key,
            rel,
            right - s,
            left - s,
            s_hi - s,
            HAS_RIGHT and not IS_INTERIOR,
            HAS_LEFT,
            HAS_LIMIT and not IS_INTERIOR,
        )
        m_new = tl.maximum(m, tl.max(b_s, 1), propagate_nan=PROPAGATE)
        b_p = tl.exp(b_s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        l = l * alpha + tl.sum(b_p, 1)
        if IS_INTERIOR:
            b_v = tl.load(p_v_tile)
        else:
            b_v = tl.load(p_v_tile, mask=m_key, other=0.0)
        acc = tl.dot(b_p.to(b_v.dtype), b_v, acc * alpha[:, None], input_precision="ieee")
        m = m_new
    return m, l, acc


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
    sinks,  # f32 or None, see _rows.row_sinks
    # outputs
    out,  # rows as in q
    softmax_lse,  # f32 or None, natural log
    part_acc,  # [slots, block_q, D] f32
    part_max,  # [slots, block_q] f32
    part_sum,  # [slots, block_q] f32
    # plan
    plan,  # i32 words, fa_triton.planner.table
    block_q,
    block_kv,
    num_aic,
    slots_per_section,
    # scalars
    softmax_scale,
    seqlen_q,
    seqlen_kv,
    win_left,
    win_right,
    num_units,  # head units of a batch entry
    units_per_kv,  # head units that share one key/value head
    # strides in elements: batch entry (b), packed token (t), head unit (n), row (r), key (s)
    stride_qb,
    stride_qt,
    stride_qn,
    stride_qr,
    stride_kb,
    stride_kn,
    stride_ks,
    stride_vb,
    stride_vn,
    stride_vs,
    stride_ob,
    stride_ot,
    stride_on,
    stride_or,
    stride_lb,
    stride_lt,
    stride_ln,
    stride_lr,
    stride_sink,
    # dimensions
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    # questions
    HEAD_MAJOR: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    HAS_CUT_FLAGS: tl.constexpr,
    PEEL_INTERIOR: tl.constexpr,
):
    """Attend the row blocks of one plan segment; one program per segment, no synchronisation."""
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
        bn = tl.where(row_end >= rows, bn + 1, bn)
        row = tl.where(row_end >= rows, 0, row_end)

    o_r = tl.arange(0, BLOCK_Q)
    o_key = tl.arange(0, BLOCK_KV)
    o_d = tl.arange(0, D)
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
        right = pos + delta + win_right + 1
        left = pos + delta - win_left
        lo = 0
        hi = len_kv
        if HAS_RIGHT:
            hi = tl.minimum(len_kv, pos_last + delta + win_right + 1)
        if HAS_LEFT:
            lo = tl.maximum(left, 0) // BLOCK_KV * BLOCK_KV

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
        kv = unit // units_per_kv
        p_k = k + row_offset(b, first_kv, kv, 0 * kv, stride_kb, stride_ks, stride_kn, stride_ks)
        p_v = v + row_offset(b, first_kv, kv, 0 * kv, stride_vb, stride_vs, stride_vn, stride_vs)
        m_row = o_r < valid
        p_q = q + base_q + o_r[:, None] * stride_qr + o_d[None, :]
        b_q = tl.load(p_q, mask=m_row[:, None], other=0.0)

        m = tl.full([BLOCK_Q], MAX_START, tl.float32)
        l = tl.zeros([BLOCK_Q], tl.float32)
        acc = tl.zeros([BLOCK_Q, D], tl.float32)
        s_mid = s_lo
        if PEEL_INTERIOR:
            full_hi = s_hi
            if HAS_RIGHT:
                full_hi = tl.minimum(s_hi, right)
            s_mid = s_lo + tl.maximum(full_hi - s_lo, 0) // BLOCK_KV * BLOCK_KV
            m, l, acc = _attend(
                b_q, p_k, p_v, stride_ks, stride_vs, s_lo, s_mid, right, left, rel, softmax_scale,
                m, l, acc, D, BLOCK_KV, HAS_RIGHT, HAS_LEFT, HAS_LIMIT, True,
            )  # fmt: skip
        m, l, acc = _attend(
            b_q, p_k, p_v, stride_ks, stride_vs, s_mid, s_hi, right, left, rel, softmax_scale,
            m, l, acc, D, BLOCK_KV, HAS_RIGHT, HAS_LEFT, HAS_LIMIT, False,
        )  # fmt: skip

        is_cut = is_first + is_last
        if is_cut > 0:
            slot_row = slot.to(tl.int64) * block_q + (row - block_first)
            p_acc = part_acc + slot_row * D + o_r[:, None] * D + o_d[None, :]
            tl.store(p_acc, acc, mask=m_row[:, None])
            tl.store(part_max + slot_row + o_r, m, mask=m_row)
            tl.store(part_sum + slot_row + o_r, l, mask=m_row)
        else:
            m_keys = m
            l_keys = l
            if sinks is not None:
                b_sink = row_sinks(sinks, unit, unit_row, o_r, stride_sink, GROUP, HEAD_MAJOR)
                m, l, acc = add_sink(m, l, acc, b_sink)
            base_o = row_offset(
                b, first_q, unit, unit_row, stride_ob, stride_ot, stride_on, stride_or
            )
            p_o = out + base_o + o_r[:, None] * stride_or + o_d[None, :]
            tl.store(p_o, normalise(l, acc).to(out.dtype.element_ty), mask=m_row[:, None])
            if softmax_lse is not None:
                base_l = row_offset(
                    b, first_q, unit, unit_row, stride_lb, stride_lt, stride_ln, stride_lr
                )
                p_lse = softmax_lse + base_l + o_r * stride_lr
                tl.store(p_lse, log_sum_exp(m_keys, l_keys), mask=m_row)

        block_done = (row_end >= rows) | (row_end >= block_first + block_q)
        slot += ((is_cut > 0) & block_done).to(tl.int32)
        bn = tl.where(row_end >= rows, bn + 1, bn)
        row = tl.where(row_end >= rows, 0, row_end)
