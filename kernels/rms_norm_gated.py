"""RMS norm of rows times an activated gate: the output norm of a linear attention layer.

A pure vector kernel; one task is BLOCK_R rows of one inner index, all columns at once:

    out[r] = (x[r] / sqrt(mean(x[r]^2) + eps) * weight + bias) * act(gate[r])

Rows lie at ``inner * stride_i + outer * stride_o``, so that heads of a wider tensor need no copy.
"""

import triton
import triton.language as tl

from ._kda_gate import sigmoid

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = "num_tasks num_outer num_inner dim stride_xi stride_gi stride_oi".split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def rms_norm_gated(
    # inputs
    x,  # [outer, inner, dim]
    gate,  # [outer, inner, dim]
    weight,  # [dim]
    bias,  # [dim] or None
    # outputs
    out,  # [outer, inner, dim]
    # scalars
    num_tasks,
    num_outer,
    num_inner,
    dim,
    eps,
    # strides in elements: outer (o) and inner (i) index of a row
    stride_xo,
    stride_xi,
    stride_go,
    stride_gi,
    stride_oo,
    stride_oi,
    # dimensions
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    # questions
    HAS_SILU: tl.constexpr,
):
    """Normalise one block of rows after the other; programs share the tasks."""
    pid = tl.program_id(0)
    o_r = tl.arange(0, BLOCK_R)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < dim
    b_w = tl.load(weight + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_bias = tl.zeros([BLOCK_D], tl.float32)
    if bias is not None:
        b_bias = tl.load(bias + o_d, mask=m_d, other=0.0).to(tl.float32)
    for task in range(pid, num_tasks, tl.num_programs(0)):
        inner = (task % num_inner).to(tl.int64)
        row = (task // num_inner).to(tl.int64) * BLOCK_R
        m = (o_r < num_outer - row)[:, None] & m_d[None, :]
        p_x = x + inner * stride_xi + row * stride_xo
        p_g = gate + inner * stride_gi + row * stride_go
        p_out = out + inner * stride_oi + row * stride_oo
        b_x = tl.load(p_x + o_r[:, None] * stride_xo + o_d[None, :], mask=m, other=0.0)
        b_g = tl.load(p_g + o_r[:, None] * stride_go + o_d[None, :], mask=m, other=0.0)
        b_x = b_x.to(tl.float32)
        b_g = b_g.to(tl.float32)
        b_rms = tl.sqrt(tl.sum(b_x * b_x, 1) / dim + eps)
        b_y = b_x / b_rms[:, None] * b_w[None, :] + b_bias[None, :]
        b_y = b_y * sigmoid(b_g)
        if HAS_SILU:
            b_y = b_y * b_g
        p_rows = p_out + o_r[:, None] * stride_oo + o_d[None, :]
        tl.store(p_rows, b_y.to(out.dtype.element_ty), mask=m)
