"""Phase 2 of ``flash_attn``: merge the partial rows of the row blocks that the plan cut.

A pure vector kernel. Program ``pid`` takes the combine tasks of one vector core. Row ``r`` of a
task has ``slots`` partials ``(acc, m, l)`` in consecutive workspace slots; ``m = max m_i``,
``l = sum l_i e^(m_i - m)``, ``out = sum acc_i e^(m_i - m) / l``, ``lse = ln l + m``. An empty
partial is the identity; a row with no key at all gives 0 and +inf. BLOCK_S slots are merged at
once, then online from one such group to the next.
"""

import triton
import triton.language as tl

from ._rows import row_offset, row_place, row_values, sequence_bounds
from ._softmax import MASKED, MAX_START, PROPAGATE, add_sink, log_sum_exp, normalise

TASK_WORDS_PER_SEGMENT = tl.constexpr(16)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "ranges_word tasks_word block_q num_aiv slots_per_section seqlen_q head_dim_v "
    "planned_columns num_units "
    "stride_ob stride_ot stride_on stride_lb stride_lt stride_ln stride_head"
).split()


@triton.jit
def _merge_slots(
    part_acc,
    part_max,
    part_sum,
    slot_row,
    slots,
    block_q,
    o_r,
    o_d,
    m_row,
    DV: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Return (m, l, acc) of BLOCK_R rows; ``slot_row`` is the first of them in the first slot."""
    o_s = tl.arange(0, BLOCK_S)
    m = tl.full([BLOCK_R], MAX_START, tl.float32)
    l = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for s in range(0, slots, BLOCK_S):
        m_part = (o_s < slots - s)[:, None] & m_row[None, :]
        p_row = slot_row + (s + o_s[:, None]) * block_q + o_r[None, :]
        p_acc = (
            part_acc
            + slot_row * DV
            + (s + o_s[:, None, None]) * (block_q * DV)
            + o_r[None, :, None] * DV
            + o_d[None, None, :]
        )
        b_m = tl.load(part_max + p_row, mask=m_part, other=MASKED)
        b_l = tl.load(part_sum + p_row, mask=m_part, other=0.0)
        b_acc = tl.load(p_acc, mask=m_part[:, :, None], other=0.0)
        m_new = tl.maximum(m, tl.max(b_m, 0), propagate_nan=PROPAGATE)
        weight = tl.exp(b_m - m_new[None, :])
        alpha = tl.exp(m - m_new)
        l = l * alpha + tl.sum(weight * b_l, 0)
        acc = acc * alpha[:, None] + tl.sum(b_acc * weight[:, :, None], 0)
        m = m_new
    return m, l, acc


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def attn_combine(
    # inputs
    part_acc,  # [slots, block_q, DV] f32
    part_max,  # [slots, block_q] f32
    part_sum,  # [slots, block_q] f32
    cu_seqlens_q,  # [B + 1] i32 or None
    seqused_q,  # [B] i32 or None
    sinks,  # f32 or None, per head as _rows.row_values reads them
    # outputs
    out,
    softmax_lse,  # f32 or None, natural log
    # plan
    plan,  # i32 words, fa_triton.planner.table
    ranges_word,  # balanced: where (first task, count) of the vector cores start
    tasks_word,  # where the tasks start
    block_q,
    num_aiv,
    slots_per_section,
    seqlen_q,
    head_dim_v,  # columns of out, at most DV
    planned_columns,  # columns that the plan counts in its tasks
    num_units,  # head units of a batch entry
    # strides in elements: batch entry (b), token of the packed axis (t), head unit (n), row (r)
    stride_ob,
    stride_ot,
    stride_on,
    stride_or,
    stride_lb,
    stride_lt,
    stride_ln,
    stride_lr,
    stride_head,
    # dimensions
    GROUP: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    # questions
    HEAD_MAJOR: tl.constexpr,
    HAS_PADDED_DIM: tl.constexpr,
    HAS_TASK_LIST: tl.constexpr,
    LSE_HAS_SINK: tl.constexpr,
):
    """Merge the rows of one combine segment; one program per vector core."""
    pid = tl.program_id(0)
    if HAS_TASK_LIST:
        task = tl.load(plan + ranges_word + pid * 2)
        count = tl.load(plan + ranges_word + pid * 2 + 1)
        p_task = plan + tasks_word + task * 8
    else:
        count = 1
        p_task = plan + tasks_word + pid * TASK_WORDS_PER_SEGMENT
    o_r = tl.arange(0, BLOCK_R)
    for t in range(count):
        bn = tl.load(p_task + t * 8)
        block_first = tl.load(p_task + t * 8 + 1) * block_q
        slot = tl.load(p_task + t * 8 + 2) + (pid // num_aiv) * slots_per_section
        slots = tl.load(p_task + t * 8 + 3)
        first = tl.load(p_task + t * 8 + 4)
        count_rows = tl.load(p_task + t * 8 + 5)
        first_d = 0
        count_d = DV
        if HAS_TASK_LIST:
            # all columns or a half of them, in the plan's count
            first_d = tl.load(p_task + t * 8 + 6) * DV // planned_columns
            count_d = tl.load(p_task + t * 8 + 7) * DV // planned_columns
        b = bn // num_units
        first_q, len_q = sequence_bounds(cu_seqlens_q, seqused_q, b, seqlen_q)
        task_end = tl.minimum(block_first + first + count_rows, len_q * GROUP)
        # groups of rows; head-major ones end at a head's end: one more per head crossed
        row = block_first + first
        groups = (tl.maximum(task_end - row, 0) + BLOCK_R - 1) // BLOCK_R
        if HEAD_MAJOR:
            length = tl.maximum(len_q, 1)
            groups += tl.maximum(task_end - 1, row) // length - row // length
        for _ in range(groups):
            unit, unit_row, affine_end = row_place(bn % num_units, row, len_q, GROUP, HEAD_MAJOR)
            row_end = tl.minimum(tl.minimum(task_end, affine_end), row + BLOCK_R)
            m_row = o_r < row_end - row
            slot_row = slot.to(tl.int64) * block_q + (row - block_first)
            base_o = row_offset(
                b, first_q, unit, unit_row, stride_ob, stride_ot, stride_on, stride_or
            )
            base_l = row_offset(
                b, first_q, unit, unit_row, stride_lb, stride_lt, stride_ln, stride_lr
            )
            for d in range(first_d, first_d + count_d, BLOCK_D):
                o_d = d + tl.arange(0, BLOCK_D)
                m, l, acc = _merge_slots(
                    part_acc, part_max, part_sum, slot_row, slots, block_q, o_r, o_d, m_row,
                    DV, BLOCK_R, BLOCK_S, BLOCK_D,
                )  # fmt: skip
                m_keys = m
                l_keys = l
                if sinks is not None:
                    b_sink = row_values(sinks, unit, unit_row, o_r, stride_head, GROUP, HEAD_MAJOR)
                    m, l, acc = add_sink(m, l, acc, b_sink)
                    if LSE_HAS_SINK:
                        m_keys = m
                        l_keys = l
                b_out = normalise(l, acc).to(out.dtype.element_ty)
                p_o = out + base_o + o_r[:, None] * stride_or + o_d[None, :]
                m_out = m_row[:, None]
                if HAS_PADDED_DIM:
                    m_out = m_out & (o_d < head_dim_v)[None, :]
                tl.store(p_o, b_out, mask=m_out)
                if softmax_lse is not None:
                    # every column part of a row writes the same value
                    p_lse = softmax_lse + base_l + o_r * stride_lr
                    tl.store(p_lse, log_sum_exp(m_keys, l_keys), mask=m_row)
            row = row_end
