"""Short causal convolution of few tokens per sequence: decode, states in place.

A pure vector kernel. One task is a sequence x tile of channels:

    out[t, c] = act(bias[c] + sum_j weight[c, j] x[t - WIDTH + 1 + j, c])

where x before the first token is the state. The state then takes the last WIDTH - 1 tokens. With
``num_accepted_tokens`` it keeps one window per outcome instead: the history starts at column
``accepted - 1``, and the new columns are the history without its oldest token, then all tokens.
"""

import triton
import triton.language as tl

from ._short_convolution import add_tap, load_bias, load_positions, store_rows

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "num_tasks num_tokens dim num_slots num_columns pad_slot_id "
    "stride_xb stride_ob stride_ss stride_index"
).split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def causal_conv1d_update(
    # inputs
    x,  # rows of dense channels: [T, dim], or [B, L, dim]
    weight,  # [WIDTH, dim], dense channels
    bias,  # [dim] or None
    conv_state,  # [slots, dim, num_columns], in place
    conv_state_indices,  # [N] i32/i64 or None: sequence n has slot n
    num_accepted_tokens,  # [N] i32/i64 or None: one window of history
    query_start_loc,  # [N + 1] i32/i64 or None: sequences of num_tokens each
    # outputs
    out,  # like x
    # scalars
    num_tasks,
    num_tokens,  # of one sequence, or of all packed ones
    dim,
    num_slots,
    num_columns,  # of a state
    pad_slot_id,
    # strides in elements: batch entry (b), token (t); slot (s), channel (c)
    stride_xb,
    stride_xt,
    stride_ob,
    stride_ot,
    stride_wt,
    stride_ss,
    stride_sc,
    stride_st,
    stride_index,
    # dimensions
    WIDTH: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
    # questions
    HAS_SILU: tl.constexpr,
):
    """Convolve one sequence after the other; programs share the tasks."""
    pid = tl.program_id(0)
    num_tiles = (dim + BLOCK_C - 1) // BLOCK_C
    o_s = tl.arange(0, BLOCK_S)
    o_t = tl.arange(0, BLOCK_T)
    for task in range(pid, num_tasks, tl.num_programs(0)):
        tile = task % num_tiles
        n = task // num_tiles
        sequence = n.to(tl.int64)
        first = 0
        length = num_tokens
        batch = sequence
        if query_start_loc is not None:
            first = tl.load(query_start_loc + n).to(tl.int32)
            end = tl.minimum(tl.load(query_start_loc + n + 1).to(tl.int32), num_tokens)
            length = end - first
            batch = sequence * 0
        slot = sequence
        runs = length > 0
        if conv_state_indices is not None:
            slot = tl.load(conv_state_indices + sequence * stride_index).to(tl.int64)
            runs = runs & (slot != pad_slot_id) & (slot >= 0) & (slot < num_slots)
        if runs:
            o_c = tile * BLOCK_C + tl.arange(0, BLOCK_C)
            m_c = o_c < dim
            first_row = tl.cast(first, tl.int64)
            p_x = x + batch * stride_xb + first_row * stride_xt
            p_out = out + batch * stride_ob + first_row * stride_ot
            p_state = conv_state + slot * stride_ss
            b_bias = load_bias(bias, o_c, m_c, BLOCK_C)
            column = 0
            columns = WIDTH - 1
            oldest = length - (WIDTH - 1)
            if num_accepted_tokens is not None:
                accepted = tl.load(num_accepted_tokens + n).to(tl.int32)
                column = tl.minimum(tl.maximum(accepted, 1), num_columns - WIDTH + 2) - 1
                columns = tl.minimum(length + WIDTH - 2, num_columns)
                oldest = length * 0 + (2 - WIDTH)
            for r in range(0, length, BLOCK_T):
                p_rows = p_x + tl.cast(r, tl.int64) * stride_xt
                b_acc = tl.zeros([BLOCK_T, BLOCK_C], tl.float32) + b_bias[None, :]
                for tap in range(WIDTH):
                    b_rows = load_positions(
                        p_rows, p_state, r, o_t - (WIDTH - 1) + tap, length, WIDTH - 1, column,
                        o_c, m_c, stride_xt, stride_sc, stride_st, WIDTH,
                    )  # fmt: skip
                    b_acc = add_tap(b_acc, b_rows, weight, tap, o_c, m_c, stride_wt)
                store_rows(
                    p_out + tl.cast(r, tl.int64) * stride_ot, b_acc, o_t, length - r, o_c, m_c,
                    stride_ot, HAS_SILU,
                )  # fmt: skip
            b_last = load_positions(
                p_x + oldest.to(tl.int64) * stride_xt, p_state, oldest, o_s, length, WIDTH - 1,
                column, o_c, m_c, stride_xt, stride_sc, stride_st, WIDTH,
            )  # fmt: skip
            p_last = p_state + o_s[:, None] * stride_st + o_c[None, :] * stride_sc
            m_last = (o_s < columns)[:, None] & m_c[None, :]
            tl.store(p_last, b_last.to(conv_state.dtype.element_ty), mask=m_last)
