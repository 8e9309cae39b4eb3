"""Gate and beta of Kimi Delta Attention, as the chunked and the recurrent kernels need them.

Decays are natural logarithms. Every exponential has an argument of at most 0: nothing overflows,
however strong the gate is.
"""

import triton
import triton.language as tl

# modes of ``activate``
GIVEN = tl.constexpr(0)
SOFTPLUS = tl.constexpr(1)
BOUNDED = tl.constexpr(2)


@triton.jit
def sigmoid(x):
    """Return ``1 / (1 + e^-x)`` with full relative precision on both sides."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def softplus(x):
    """Return ``ln(1 + e^x)``, also for small results with full relative precision.

    ``ln(1 + e) = 2 artanh(e / (2 + e))``: rounding ``1 + e`` would cost the digits of a weak gate.
    The polynomial in the square of that quotient, at most 1/9, is off by 4e-9 at most.
    """
    small = tl.exp(-tl.abs(x))
    s = small / (2.0 + small)
    z = s * s
    series = 1.0 + z * (0.33333161 + z * (0.20012298 + z * (0.13982579 + z * 0.14078889)))
    return tl.maximum(x, 0.0) + 2.0 * s * series


@triton.jit
def activate(x, a, lower_bound, MODE: tl.constexpr):
    """Return the log decay of a raw gate ``x``, its bias included; ``a`` is ``e^A_log``, positive.

    GIVEN leaves x as it is, SOFTPLUS is ``-a softplus(x)``, BOUNDED ``lower_bound sigmoid(a x)``.
    """
    decay = x
    if MODE == SOFTPLUS:
        decay = -a * softplus(x)
    elif MODE == BOUNDED:
        decay = lower_bound * sigmoid(a * x)
    return decay


@triton.jit
def activate_beta(b, beta_scale, HAS_SIGMOID: tl.constexpr):
    """Return beta from its stored form: as it is, or ``beta_scale sigmoid(b)``."""
    beta = b
    if HAS_SIGMOID:
        beta = sigmoid(b) * beta_scale
    return beta
