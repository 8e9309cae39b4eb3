"""Phase 4 of ``chunk_kda_fwd``, FwdH: the recurrence over the chunks of a sequence.

``h[c] = S; v_new = u - w h[c]; S <- diag(2^gk_last) S + kg' v_new``. One task is a tile of BLOCK_V
value columns of one sequence and value head; its part of the state stays on chip, in the layout it
is stored in (``[K, BLOCK_V]``, or ``[BLOCK_V, K]`` where the state is V-first), and only operands
of products are transposed. A row of the sequence table names (batch entry, first token, tokens,
first chunk, sequence).
"""

import triton
import triton.language as tl

from ._chunks import head_major_row

SEQUENCE_WORDS = tl.constexpr(5)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_tokens num_v_heads num_slots stride_initial stride_final".split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_fwd_h(
    # inputs
    w,  # [B, HV, T, K] 16-bit
    u,  # [B, HV, T, V] 16-bit
    kg,  # [B, HV, T, K] 16-bit
    gk,  # [B, HV, T, K] f32
    initial_state,  # [slots, HV, K, V] or [slots, HV, V, K], or None
    state_indices,  # [N] i32: slots of the sequences, or None: slot n; outside the pool: none
    has_initial_state,  # [N] i8, or None: all of them
    sequences,  # [N, 5] i32
    # outputs
    v_new,  # [B, HV, T, V] 16-bit
    h,  # [chunks, HV, K, V] or [chunks, HV, V, K] 16-bit
    final_state,  # as initial_state, or None; may be the same memory
    # scalars
    num_tasks,  # N * HV * column tiles
    num_tokens,
    num_v_heads,
    num_slots,
    # strides in elements from slot to slot
    stride_initial,
    stride_final,
    # dimensions
    K: tl.constexpr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    # questions
    IS_V_FIRST: tl.constexpr,
):
    """Write v_new, the states before the chunks, and the final states."""
    COLUMN_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    o_t = tl.arange(0, CHUNK)
    o_k = tl.arange(0, BLOCK_K)
    dtype = v_new.dtype.element_ty
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        o_v = task % COLUMN_TILES * BLOCK_V + tl.arange(0, BLOCK_V)
        i_hv = task // COLUMN_TILES % num_v_heads
        p_sequence = sequences + task // COLUMN_TILES // num_v_heads * SEQUENCE_WORDS
        i_b = tl.load(p_sequence)
        i_t = tl.load(p_sequence + 1)
        length = tl.load(p_sequence + 2)
        i_chunk = tl.load(p_sequence + 3)
        i_n = tl.load(p_sequence + 4)
        # a limit on K that hides the whole tile is a state that is not there
        slot = i_n
        known = K
        stored = K
        if state_indices is not None:
            slot = tl.load(state_indices + i_n)
            known = tl.where((slot >= 0) & (slot < num_slots), K, 0)
            # a sequence without tokens or without a slot leaves the pool alone
            stored = tl.where(length > 0, known, 0)
            slot = tl.where(known > 0, slot, 0)
        if has_initial_state is not None:
            known = tl.where(tl.load(has_initial_state + i_n) != 0, known, 0)
        slot_base = slot.to(tl.int64)
        m_k = o_k < K
        m_v = o_v < V
        if IS_V_FIRST:
            o_s = o_v[:, None] * K + o_k[None, :]
            m_s = m_v[:, None] & m_k[None, :]
            b_s = tl.zeros([BLOCK_V, BLOCK_K], tl.float32)
            m_initial = m_v[:, None] & (o_k < known)[None, :]
        else:
            o_s = o_k[:, None] * V + o_v[None, :]
            m_s = m_k[:, None] & m_v[None, :]
            b_s = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
            m_initial = (o_k < known)[:, None] & m_v[None, :]
        if initial_state is not None:
            p_initial = initial_state + slot_base * stride_initial + i_hv * (K * V) + o_s
            b_s = tl.load(p_initial, mask=m_initial, other=0.0).to(tl.float32)
        row = head_major_row(i_b, i_t, i_hv, num_v_heads, num_tokens)
        p_h = h + (i_chunk.to(tl.int64) * num_v_heads + i_hv) * (K * V)
        for s in range(0, length, CHUNK):
            m_t = o_t < length - s
            m_tk = m_t[:, None] & m_k[None, :]
            m_tv = m_t[:, None] & m_v[None, :]
            p_k = (row + s) * K + o_t[:, None] * K + o_k[None, :]
            p_v = (row + s) * V + o_t[:, None] * V + o_v[None, :]
            b_h = b_s.to(dtype)
            tl.store(p_h + o_s, b_h, mask=m_s)
            b_w = tl.load(w + p_k, mask=m_tk, other=0.0)
            b_u = tl.load(u + p_v, mask=m_tv, other=0.0).to(tl.float32)
            if IS_V_FIRST:
                b_wh = tl.dot(b_w, tl.trans(b_h))
            else:
                b_wh = tl.dot(b_w, b_h)
            b_v = (b_u - b_wh).to(dtype)
            tl.store(v_new + p_v, b_v, mask=m_tv)
            b_kg = tl.load(kg + p_k, mask=m_tk, other=0.0)
            last = row + s + tl.minimum(length - s, CHUNK) - 1
            b_last = tl.exp2(tl.load(gk + last * K + o_k, mask=m_k, other=0.0))
            if IS_V_FIRST:
                b_s = b_s * b_last[None, :] + tl.dot(tl.trans(b_v), b_kg)
            else:
                b_s = b_s * b_last[:, None] + tl.dot(tl.trans(b_kg), b_v)
            p_h += num_v_heads * (K * V)
        if final_state is not None:
            if IS_V_FIRST:
                m_final = m_v[:, None] & (o_k < stored)[None, :]
            else:
                m_final = (o_k < stored)[:, None] & m_v[None, :]
            p_final = final_state + slot_base * stride_final + i_hv * (K * V) + o_s
            tl.store(p_final, b_s.to(final_state.dtype.element_ty), mask=m_final)
