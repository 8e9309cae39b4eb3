"""Products with stored integers on the matrix unit: the other factor as two terms of eight bits.

``x = unit (hi + lo / 254)`` per row with ``unit = max |x| / 127``: hi is x in units, rounded, lo
the rest. Two products of integers are exact, so that all error is that of lo, at most 2e-5 of the
row's largest element, and the integers go straight to the matrix unit.
"""

import triton
import triton.language as tl

LO_STEPS = tl.constexpr(254.0)


@triton.jit
def split_terms(b_x):
    """Return (hi, lo, unit) of rows [M, N] in f32."""
    unit = tl.maximum(tl.max(tl.abs(b_x), 1), 1.0e-30) / 127.0
    b_units = b_x * (1.0 / unit)[:, None]
    b_hi = tl.floor(b_units + 0.5)
    b_lo = tl.floor((b_units - b_hi) * LO_STEPS + 0.5)
    return b_hi.to(tl.int8), b_lo.to(tl.int8), unit


@triton.jit
def dot_terms(b_hi, b_lo, unit, b_integers):
    """Return the product of a split factor [M, N] with integers [N, K], f32."""
    b_product = tl.dot(b_hi, b_integers).to(tl.float32)
    b_product += tl.dot(b_lo, b_integers).to(tl.float32) * (1.0 / LO_STEPS)
    return b_product * unit[:, None]
