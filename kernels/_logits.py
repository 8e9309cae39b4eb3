"""From ``q k^T`` to logits: soft cap, distance bias, mask."""

import triton
import triton.language as tl

from ._softmax import MASKED

# below it the exponential form of tanh loses digits that the logits need
SMALL = tl.constexpr(0.35)


@triton.jit
def soft_cap(b_s, softcap, IS_EXACT: tl.constexpr):
    """Return ``softcap * tanh(b_s / 2)``; the factor ``2 / softcap`` is part of the softmax scale.

    ``tanh(x / 2) = 1 - 2 / (e^x + 1)`` overflows nowhere: ``e^x = inf`` gives 1. Its absolute error
    is that of 1.0, which fp32 inputs and large caps can tell: they take a series around 0.
    """
    b_tanh = 1.0 - 2.0 / (tl.exp(b_s) + 1.0)
    if IS_EXACT:
        x = b_s * 0.5
        xx = x * x
        series = 62.0 / 2835.0 - xx * (1382.0 / 155925.0)
        series = -1.0 / 3.0 + xx * (2.0 / 15.0 + xx * (-17.0 / 315.0 + xx * series))
        b_tanh = tl.where(tl.abs(x) < SMALL, x + x * xx * series, b_tanh)
    return b_tanh * softcap


@triton.jit
def distance_bias(b_s, b_slope, rel, diagonal):
    """Subtract ``slope * |key - position|``; ``rel`` [M, N] + ``diagonal`` is that distance."""
    return b_s - b_slope[:, None] * tl.abs(rel + diagonal.to(tl.float32))


@triton.jit
def hide(
    b_s,
    o_key,
    rel,
    right,
    left,
    limit,
    HAS_RIGHT: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
):
    """Hide keys outside ``left <= rel < right`` and at or past ``limit``.

    ``rel`` [M, N] is key minus position. A loop-invariant f32 tile against an integer scalar is one
    compare and one select; an i32 compare takes seven vector passes, and f32 scalar arithmetic in
    front of the compare loses the cube/vector pipeline.
    """
    if HAS_RIGHT:
        b_s = tl.where(rel < right.to(tl.float32), b_s, MASKED)
    if HAS_LEFT:
        b_s = tl.where(rel >= left.to(tl.float32), b_s, MASKED)
    if HAS_LIMIT:
        b_s = tl.where((o_key < limit)[None, :], b_s, MASKED)
    return b_s
