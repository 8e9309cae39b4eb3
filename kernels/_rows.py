"""Where the rows of a head unit lie: shared by the forward and the combine kernel.

A unit is one key/value head with its ``GROUP`` query heads, or a single query head (``GROUP`` = 1).
Its ``len_q * GROUP`` rows are numbered position-major (``r = position * GROUP + head``) or, with
``HEAD_MAJOR``, head-major (``r = head * len_q + position``). Position-major rows are affine in
memory: the launcher sees to that by packing.
"""

import triton
import triton.language as tl


@triton.jit
def sequence_bounds(cu_seqlens, seqused, b, length):
    """Return (first token, valid tokens) of batch entry ``b``.

    ``seqused`` wins over ``cu_seqlens``, and ``length`` bounds both: no length read from the device
    leads out of the tensors.
    """
    first = b * 0
    n = length
    if cu_seqlens is not None:
        first = tl.load(cu_seqlens + b)
        n = tl.minimum(tl.load(cu_seqlens + b + 1) - first, length)
    if seqused is not None:
        n = tl.minimum(tl.load(seqused + b), length)
    return first, n


@triton.jit
def row_place(n, row, len_q, GROUP: tl.constexpr, HEAD_MAJOR: tl.constexpr):
    """Return (head unit of the tensors, first row there, end of the affine rows) for ``row``."""
    if HEAD_MAJOR:
        length = tl.maximum(len_q, 1)
        head = row // length
        unit = n * GROUP + head
        unit_row = row - head * length
        end = (head + 1) * length
    else:
        unit = n
        unit_row = row
        end = len_q * GROUP
    return unit, unit_row, end


@triton.jit
def row_offset(b, first_token, unit, unit_row, stride_b, stride_t, stride_n, stride_r):
    """Return the offset of a row in elements, in 64 bits."""
    sequence = b.to(tl.int64) * stride_b + first_token.to(tl.int64) * stride_t
    return sequence + unit.to(tl.int64) * stride_n + unit_row.to(tl.int64) * stride_r


@triton.jit
def row_values(
    per_head, unit, unit_row, o_r, stride_n, GROUP: tl.constexpr, HEAD_MAJOR: tl.constexpr
):
    """Load the value of its query head for every row of a tile.

    Merged rows read a table of period ``GROUP`` per unit, ``stride_n`` elements apart.
    """
    if HEAD_MAJOR or GROUP == 1:
        b_value = tl.load(per_head + unit * stride_n) + o_r.to(tl.float32) * 0.0
    else:
        b_value = tl.load(per_head + unit * stride_n + unit_row % GROUP + o_r)
    return b_value
