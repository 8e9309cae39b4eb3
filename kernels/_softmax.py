"""Constants and steps of the online softmax shared by the attention kernels.

Logits are natural-log. A hidden logit is ``MASKED``, a running maximum starts at ``MAX_START``:
finite values, so that ``exp(MASKED - MAX_START)`` is exactly 0 and ``-inf - -inf`` cannot occur. A
row is empty iff its sum is 0.
"""

import triton
import triton.language as tl

MASKED = tl.constexpr(-1.0e30)
# above MASKED: a tile that is hidden as a whole gives p = exp(-0.5e30) = 0
MAX_START = tl.constexpr(-0.5e30)
# below it, differences of two logits stay finite or become -inf
LARGEST = tl.constexpr(3.0e38)
# the default maximum drops NaN, costs seven more vector operations and, with a mask, the pipeline
PROPAGATE = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def add_sink(m, l, acc, b_sink):
    """Let sink logits [M] join the denominator; a sink has no value row, one of +inf takes all."""
    b_sink = tl.minimum(b_sink, LARGEST, propagate_nan=PROPAGATE)
    m_new = tl.maximum(m, b_sink, propagate_nan=PROPAGATE)
    alpha = tl.exp(m - m_new)
    return m_new, l * alpha + tl.exp(b_sink - m_new), acc * alpha[:, None]


@triton.jit
def normalise(l, acc):
    """Return ``acc / l`` [M, D]; an empty row gives 0."""
    return acc / tl.maximum(l, 1.0e-30, propagate_nan=PROPAGATE)[:, None]


@triton.jit
def log_sum_exp(m, l):
    """Return ``m + ln l`` [M]; an empty row gives +inf, a row with a NaN gives NaN."""
    lse = m + tl.log(tl.maximum(l, 1.0e-30, propagate_nan=PROPAGATE))
    return tl.where(l == 0.0, float("inf"), lse)
