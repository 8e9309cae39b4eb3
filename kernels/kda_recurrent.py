"""Decode step of Kimi Delta Attention: the recurrence token by token, state pool in place.

A pure vector kernel. One task is a sequence x value head x tile of V; the state tile stays on chip
from its load to its store, in the layout it is stored in. Natural-log decay ``a_t``, per channel:

    S~ = diag(e^a_t) S;  S = S~ + beta_t k_t (v_t - S~^T k_t)^T;  o_t = scale S^T q_t   (S: K x V)

A sequence reads its state from ``state[read_index]`` and leaves the last one in
``final_state[slot]``; with ``STORES_EACH_STEP`` the state after token t goes to the slot of column
t of its indices. An index outside ``skip_index_below <= index < slots`` is never followed. Queries
and keys are normalised, gates and beta activated in fp32 on the way in.
"""

import triton
import triton.language as tl

from ._kda_gate import activate, activate_beta

L2_EPSILON = tl.constexpr(1.0e-6)

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "num_tasks num_heads group num_tokens dim_k dim_v num_slots num_steps skip_index_below "
    "stride_qb stride_qt stride_qh stride_kb stride_kt stride_kh stride_vb stride_vt stride_vh "
    "stride_gb stride_gt stride_gh stride_bb stride_bt stride_bh stride_ot stride_index"
).split()


@triton.jit
def _load_vector(p, mask, HAS_PADDING: tl.constexpr):
    """Load [D] as fp32; columns past the head dim are 0."""
    if HAS_PADDING:
        b = tl.load(p, mask=mask, other=0.0)
    else:
        b = tl.load(p)
    return b.to(tl.float32)


@triton.jit
def _store(p, b, mask, HAS_PADDING: tl.constexpr):
    """Store fp32 values in the dtype of the tensor."""
    if HAS_PADDING:
        tl.store(p, b.to(p.dtype.element_ty), mask=mask)
    else:
        tl.store(p, b.to(p.dtype.element_ty))


@triton.jit
def _along_k(b, V_FIRST: tl.constexpr):
    """View values per channel of K so that they meet a state tile."""
    if V_FIRST:
        tile = b[None, :]
    else:
        tile = b[:, None]
    return tile


@triton.jit
def _along_v(b, V_FIRST: tl.constexpr):
    """View values per channel of V so that they meet a state tile."""
    if V_FIRST:
        tile = b[:, None]
    else:
        tile = b[None, :]
    return tile


@triton.jit
def _inverse_norm(b):
    """Return one over the L2 norm of [D]."""
    return 1.0 / tl.sqrt(tl.sum(b * b, 0) + L2_EPSILON)


@triton.jit
def _sum_over_k(b_s, b, V_FIRST: tl.constexpr):
    """Return ``S^T b`` [V] for values [K]."""
    if V_FIRST:
        b_v = tl.sum(b_s * b[None, :], 1)
    else:
        b_v = tl.sum(b_s * b[:, None], 0)
    return b_v


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def kda_recurrent(
    # inputs; rows by strides
    q,  # [.., H, K]
    k,  # [.., H, K]
    v,  # [.., HV, V]
    raw_gate,  # [.., HV, K]
    beta,  # [.., HV]
    a_log,  # [HV] f32 or None
    dt_bias,  # [HV, K] f32 or None
    state,  # [slots, HV, V, K] or [slots, HV, K, V]
    # outputs
    final_state,  # like state, may be the same memory; None to leave no state
    out,  # [tokens, HV, V] dense rows
    # which state
    cu_seqlens,  # [N + 1] i32/i64 or None: sequences of num_tokens each
    ssm_state_indices,  # [N] or [N, num_steps] i32/i64 or None: sequence n has slot n
    num_accepted_tokens,  # [N] i32/i64 or None: the first state is that of the first column
    # scalars
    num_tasks,
    num_heads,  # HV
    group,  # HV / H
    num_tokens,  # of one sequence, or of all packed ones
    dim_k,
    dim_v,
    num_slots,
    num_steps,  # columns of ssm_state_indices
    skip_index_below,
    scale,
    lower_bound,
    beta_scale,
    # strides in elements: batch entry (b), token (t), head (h); slot (s), head (h), row (r)
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    stride_gb,
    stride_gt,
    stride_gh,
    stride_bb,
    stride_bt,
    stride_bh,
    stride_ot,
    stride_ss,
    stride_sh,
    stride_sr,
    stride_fs,
    stride_fh,
    stride_fr,
    stride_index,
    # dimensions
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    GATE_MODE: tl.constexpr,
    # questions
    IS_V_FIRST: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    HAS_L2NORM: tl.constexpr,
    HAS_BETA_SIGMOID: tl.constexpr,
    IS_IN_PLACE: tl.constexpr,
    STORES_EACH_STEP: tl.constexpr,
):
    """Advance one state tile after the other; programs share the tasks."""
    pid = tl.program_id(0)
    num_tiles = (dim_v + BLOCK_V - 1) // BLOCK_V
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < dim_k
    for task in range(pid, num_tasks, tl.num_programs(0)):
        tile = task % num_tiles
        head = task // num_tiles % num_heads
        n = task // num_tiles // num_heads
        sequence = n.to(tl.int64)
        first = 0
        length = num_tokens
        batch = sequence
        if cu_seqlens is not None:
            first = tl.load(cu_seqlens + n).to(tl.int32)
            end = tl.minimum(tl.load(cu_seqlens + n + 1).to(tl.int32), num_tokens)
            length = end - first
            batch = sequence * 0
        read_index = sequence
        p_index = ssm_state_indices
        if ssm_state_indices is not None:
            p_index = ssm_state_indices + sequence * stride_index
            column = 0
            if num_accepted_tokens is not None:
                accepted = tl.load(num_accepted_tokens + n).to(tl.int32)
                column = tl.minimum(tl.maximum(accepted, 1), num_steps) - 1
            read_index = tl.load(p_index + column).to(tl.int64)
        o_v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        m_v = o_v < dim_v
        m_state = _along_k(m_k, IS_V_FIRST) & _along_v(m_v, IS_V_FIRST)
        runs = (read_index >= skip_index_below) & (read_index < num_slots)
        if IS_IN_PLACE:
            # an empty sequence leaves its slot alone; elsewhere it hands its state on
            runs = runs & (length > 0)
        if runs:
            head_64 = head.to(tl.int64)
            if IS_V_FIRST:
                o_state = o_v[:, None] * stride_sr + o_k[None, :]
                o_final = o_v[:, None] * stride_fr + o_k[None, :]
            else:
                o_state = o_k[:, None] * stride_sr + o_v[None, :]
                o_final = o_k[:, None] * stride_fr + o_v[None, :]
            b_s = _load_vector(
                state + read_index * stride_ss + head_64 * stride_sh + o_state, m_state, HAS_PADDING
            )
            a = 1.0
            if GATE_MODE > 0:
                a = tl.exp(tl.load(a_log + head))
            b_bias = tl.zeros([BLOCK_K], tl.float32)
            if dt_bias is not None:
                b_bias = _load_vector(dt_bias + head * dim_k + o_k, m_k, HAS_PADDING)
            head_q = (head // group).to(tl.int64)
            row = batch * num_tokens + first
            p_q = q + batch * stride_qb + head_q * stride_qh
            p_k = k + batch * stride_kb + head_q * stride_kh
            p_v = v + batch * stride_vb + head_64 * stride_vh
            p_g = raw_gate + batch * stride_gb + head_64 * stride_gh
            p_beta = beta + batch * stride_bb + head_64 * stride_bh
            for t in range(0, length):
                token = (first + t).to(tl.int64)
                b_k = _load_vector(p_k + token * stride_kt + o_k, m_k, HAS_PADDING)
                b_g = _load_vector(p_g + token * stride_gt + o_k, m_k, HAS_PADDING)
                b_v = _load_vector(p_v + token * stride_vt + o_v, m_v, HAS_PADDING)
                b_q = _load_vector(p_q + token * stride_qt + o_k, m_k, HAS_PADDING)
                b_beta = tl.load(p_beta + token * stride_bt).to(tl.float32)
                b_beta = activate_beta(b_beta, beta_scale, HAS_BETA_SIGMOID)
                q_scale = scale
                if HAS_L2NORM:
                    q_scale = scale * _inverse_norm(b_q)
                    b_k = b_k * _inverse_norm(b_k)
                decay = tl.exp(activate(b_g + b_bias, a, lower_bound, GATE_MODE))
                # S~^T k = S^T (e^a k): the tile is decayed where it is updated, in one pass
                b_error = b_v - _sum_over_k(b_s, decay * b_k, IS_V_FIRST)
                b_s = b_s * _along_k(decay, IS_V_FIRST)
                b_s += _along_k(b_k, IS_V_FIRST) * _along_v(b_error * b_beta, IS_V_FIRST)
                b_o = _sum_over_k(b_s, b_q, IS_V_FIRST) * q_scale
                p_o = out + (row + t) * stride_ot + head_64 * dim_v + o_v
                _store(p_o, b_o, m_v, HAS_PADDING)
                if STORES_EACH_STEP:
                    index = tl.load(p_index + tl.minimum(t, num_steps - 1)).to(tl.int64)
                    if (index >= skip_index_below) & (index < num_slots):
                        p_f = final_state + index * stride_fs + head_64 * stride_fh
                        _store(p_f + o_final, b_s, m_state, HAS_PADDING)
            if final_state is not None:
                if not STORES_EACH_STEP:
                    slot = sequence
                    if IS_IN_PLACE:
                        slot = read_index
                    p_f = final_state + slot * stride_fs + head_64 * stride_fh
                    _store(p_f + o_final, b_s, m_state, HAS_PADDING)
