"""Short causal convolution of packed sequences: prefill, states in place.

A pure vector kernel. One task is a part of a sequence x tile of channels:

    out[t, c] = act(bias[c] + sum_j weight[c, j] x[t - WIDTH + 1 + j, c])

The history of the first rows is the sequence's state, or 0. Part 0 alone reads that state, and
writes the last WIDTH - 1 tokens to it when it is done; later parts start at BLOCK_T rows or more
and find their history in x. How long sequences are is read here: the host needs not know.
"""

import triton
import triton.language as tl

from ._short_convolution import add_tap, load_bias, load_positions, store_rows

# scalars whose value changes from call to call without a better kernel for it
_PLAIN_SCALARS = (
    "num_tasks num_parts num_tokens dim num_slots pad_slot_id "
    "stride_xb stride_ob stride_ss stride_index"
).split()


@triton.jit(do_not_specialize=_PLAIN_SCALARS)
def causal_conv1d(
    # inputs
    x,  # rows of dense channels: [T, dim], or [B, T, dim]
    weight,  # [WIDTH, dim], dense channels
    bias,  # [dim] or None
    conv_states,  # [slots, dim, >= WIDTH - 1] or None, in place
    has_initial_state,  # [N] i8, 0 or 1, or None: none has
    cache_indices,  # [N] i32/i64 or None: sequence n has slot n
    query_start_loc,  # [N + 1] i32/i64 or None: sequences of num_tokens each
    # outputs
    out,  # like x
    # scalars
    num_tasks,
    num_parts,  # of a sequence
    num_tokens,  # of one sequence, or of all packed ones
    dim,
    num_slots,
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
    """Convolve one part after the other; programs share the tasks."""
    pid = tl.program_id(0)
    num_tiles = (dim + BLOCK_C - 1) // BLOCK_C
    o_s = tl.arange(0, BLOCK_S)
    o_t = tl.arange(0, BLOCK_T)
    for task in range(pid, num_tasks, tl.num_programs(0)):
        tile = task % num_tiles
        part = task // num_tiles % num_parts
        n = task // num_tiles // num_parts
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
        if cache_indices is not None:
            slot = tl.load(cache_indices + sequence * stride_index).to(tl.int64)
            runs = runs & (slot != pad_slot_id) & (slot >= 0) & (slot < num_slots)
        if runs:
            size = (length + num_parts - 1) // num_parts
            size = (size + BLOCK_T - 1) // BLOCK_T * BLOCK_T
            row = part * size
            row_end = tl.minimum(row + size, length)
            o_c = tile * BLOCK_C + tl.arange(0, BLOCK_C)
            m_c = o_c < dim
            first_row = tl.cast(first, tl.int64)
            p_x = x + batch * stride_xb + first_row * stride_xt
            p_out = out + batch * stride_ob + first_row * stride_ot
            p_state = conv_states
            b_bias = load_bias(bias, o_c, m_c, BLOCK_C)
            if part == 0:
                # the rows that the history reaches
                known = 0
                if conv_states is not None:
                    p_state = conv_states + slot * stride_ss
                    if has_initial_state is not None:
                        known = tl.load(has_initial_state + n).to(tl.int32) * (WIDTH - 1)
                b_acc = tl.zeros([BLOCK_S, BLOCK_C], tl.float32) + b_bias[None, :]
                for tap in range(WIDTH):
                    b_rows = load_positions(
                        p_x, p_state, 0, o_s - (WIDTH - 1) + tap, length, known, 0, o_c, m_c,
                        stride_xt, stride_sc, stride_st, WIDTH,
                    )  # fmt: skip
                    b_acc = add_tap(b_acc, b_rows, weight, tap, o_c, m_c, stride_wt)
                row = tl.minimum(length, WIDTH - 1)
                store_rows(p_out, b_acc, o_s, row, o_c, m_c, stride_ot, HAS_SILU)
                if conv_states is not None:
                    # the state they leave
                    oldest = length - (WIDTH - 1)
                    b_last = load_positions(
                        p_x + oldest.to(tl.int64) * stride_xt, p_state, oldest, o_s, length, known,
                        0, o_c, m_c, stride_xt, stride_sc, stride_st, WIDTH,
                    )  # fmt: skip
                    p_last = p_state + o_s[:, None] * stride_st + o_c[None, :] * stride_sc
                    m_last = (o_s < WIDTH - 1)[:, None] & m_c[None, :]
                    tl.store(p_last, b_last.to(conv_states.dtype.element_ty), mask=m_last)
            for r in range(row, row_end, BLOCK_T):
                m = (o_t < row_end - r)[:, None] & m_c[None, :]
                b_acc = tl.zeros([BLOCK_T, BLOCK_C], tl.float32) + b_bias[None, :]
                p_rows = p_x + tl.cast(r, tl.int64) * stride_xt
                for tap in range(WIDTH):
                    p_tap = p_rows + (o_t - (WIDTH - 1) + tap)[:, None] * stride_xt
                    b_rows = tl.load(p_tap + o_c[None, :], mask=m, other=0.0).to(tl.float32)
                    b_acc = add_tap(b_acc, b_rows, weight, tap, o_c, m_c, stride_wt)
                store_rows(
                    p_out + tl.cast(r, tl.int64) * stride_ot, b_acc, o_t, row_end - r, o_c, m_c,
                    stride_ot, HAS_SILU,
                )  # fmt: skip
