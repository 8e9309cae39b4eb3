"""Steps that both kernels of the short causal convolution share.

Positions count from the start of a sequence: position ``p >= 0`` is row p of x, ``p < 0`` is column
``column + WIDTH - 1 + p`` of its state, so ``column`` names the oldest token of the history.
Channels lie along the last axis of every tile.
"""

import triton
import triton.language as tl

from ._kda_gate import sigmoid


@triton.jit
def load_positions(
    p_rows,
    p_state,
    base,
    o_rows,
    length,
    known,
    column,
    o_c,
    m_c,
    stride_xt,
    stride_sc,
    stride_st,
    WIDTH: tl.constexpr,
):
    """Load positions ``base + o_rows`` [P] as fp32 [P, C], 0 before ``-known`` and past the end.

    ``p_rows`` is the address of position ``base``, so that offsets inside a tile stay small.
    """
    o_position = base + o_rows
    m_x = ((o_position >= 0) & (o_position < length))[:, None] & m_c[None, :]
    p_x = p_rows + o_rows[:, None] * stride_xt + o_c[None, :]
    b = tl.load(p_x, mask=m_x, other=0.0).to(tl.float32)
    if p_state is not None:
        m_state = ((o_position < 0) & (o_position >= -known))[:, None] & m_c[None, :]
        o_column = column + WIDTH - 1 + o_position
        p_columns = p_state + o_column[:, None] * stride_st + o_c[None, :] * stride_sc
        b += tl.load(p_columns, mask=m_state, other=0.0).to(tl.float32)
    return b


@triton.jit
def load_bias(bias, o_c, m_c, BLOCK_C: tl.constexpr):
    """Load the bias of the channels as fp32 [C], 0 without one."""
    b = tl.zeros([BLOCK_C], tl.float32)
    if bias is not None:
        b = tl.load(bias + o_c, mask=m_c, other=0.0).to(tl.float32)
    return b


@triton.jit
def add_tap(b_acc, b_rows, weight, tap, o_c, m_c, stride_wt):
    """Add the product of rows [P, C] with one tap of the channels."""
    b_w = tl.load(weight + tap * stride_wt + o_c, mask=m_c, other=0.0).to(tl.float32)
    return b_acc + b_rows * b_w[None, :]


@triton.jit
def store_rows(p_out, b_acc, o_t, last, o_c, m_c, stride_ot, HAS_SILU: tl.constexpr):
    """Activate rows [P, C] and store those before ``last``."""
    if HAS_SILU:
        b_acc = b_acc * sigmoid(b_acc)
    m = (o_t < last)[:, None] & m_c[None, :]
    p = p_out + o_t[:, None] * stride_ot + o_c[None, :]
    tl.store(p, b_acc.to(p_out.dtype.element_ty), mask=m)
