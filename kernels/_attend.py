"""The loop over key tiles: online softmax of one tile of rows.

``m' = max(m, max s)``, ``p = e^(s - m')``, ``l' = l e^(m - m') + sum p``,
``acc' = acc e^(m - m') + p v``. Q, m, l and acc stay on chip.
"""

import triton
import triton.language as tl

from ._keys import load_tile, tile_offset
from ._logits import distance_bias, hide, soft_cap
from ._softmax import PROPAGATE


@triton.jit
def attend(
    # rows
    b_q,
    m,
    l,
    acc,
    # keys [s_lo, s_hi) of the sequence; p_k and p_v point to its key/value head
    p_k,
    p_v,
    pages,
    s_lo,
    s_hi,
    page_size,
    stride_kb,
    stride_ks,
    stride_kd,
    stride_vb,
    stride_vs,
    stride_vd,
    head_dim,
    head_dim_v,
    # logits
    softmax_scale,
    softcap,
    b_slope,
    rel,
    diagonal,
    right,
    left,
    # dimensions
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    KV_STEP: tl.constexpr,
    # questions
    HAS_RIGHT: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_EXACT_CAP: tl.constexpr,
    HAS_PADDED_DIM: tl.constexpr,
    IS_NZ: tl.constexpr,
    IS_INTERIOR: tl.constexpr,
):
    """Return (m, l, acc) after keys ``[s_lo, s_hi)``.

    Tiles advance by ``KV_STEP`` keys, fewer than BLOCK_KV where a page is no power of two. An
    interior has whole tiles and no right bound.
    """
    o_key = tl.arange(0, BLOCK_KV)
    for s in range(s_lo, s_hi, KV_STEP):
        tokens = s_hi - s
        if KV_STEP < BLOCK_KV:
            tokens = tl.minimum(tokens, KV_STEP)
        b_k = load_tile(
            p_k + tile_offset(pages, s, page_size, stride_kb, stride_ks),
            o_key, tokens, stride_ks, stride_kd, head_dim, D, IS_INTERIOR, HAS_PADDED_DIM, IS_NZ,
        )  # fmt: skip
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * softmax_scale
        if HAS_SOFTCAP:
            b_s = soft_cap(b_s, softcap, HAS_EXACT_CAP)
        if b_slope is not None:
            b_s = distance_bias(b_s, b_slope, rel, s - diagonal)
        b_s = hide(
            b_s,
            o_key,
            rel,
            right - s,
            left - s,
            tokens,
            HAS_RIGHT and not IS_INTERIOR,
            HAS_LEFT,
            HAS_LIMIT and not IS_INTERIOR,
        )
        m_new = tl.maximum(m, tl.max(b_s, 1), propagate_nan=PROPAGATE)
        b_p = tl.exp(b_s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        l = l * alpha + tl.sum(b_p, 1)
        b_v = load_tile(
            p_v + tile_offset(pages, s, page_size, stride_vb, stride_vs),
            o_key, tokens, stride_vs, stride_vd, head_dim_v, DV, IS_INTERIOR, HAS_PADDED_DIM, IS_NZ,
        )  # fmt: skip
        acc = tl.dot(b_p.to(b_v.dtype), b_v, acc * alpha[:, None], input_precision="ieee")
        m = m_new
    return m, l, acc
