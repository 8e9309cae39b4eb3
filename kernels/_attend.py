"""The loop over key tiles: online softmax of one tile of rows.

``m' = max(m, max s)``, ``p = e^(s - m')``, ``l' = l e^(m - m') + sum p``,
``acc' = acc e^(m - m') + p v``. Q, m, l and acc stay on chip.
"""

import triton
import triton.language as tl

from ._cache import (
    PER_TOKEN,
    add_bias,
    hide_marked,
    offset_values,
    scale_logits,
    scale_probabilities,
)
from ._int8_terms import dot_terms, split_terms
from ._keys import load_tile, tile_offset
from ._logits import distance_bias, hide, soft_cap
from ._softmax import PROPAGATE


@triton.jit
def attend(
    # rows; q in two terms, b_q the first of them, with HAS_INT8_TERMS
    b_q,
    b_q_lo,
    q_unit,
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
    # inputs per key of the tile's rows, None where absent; p_.. point to key 0 of the sequence
    m_row,
    o_r,
    p_bias,
    stride_xr,
    p_mask,
    stride_mr,
    mask_fill,
    # scales of stored integers: what offsets of K add, and per token p_.. as pages or rows
    b_shift,
    p_k_scale,
    p_k_offset,
    p_v_scale,
    p_v_offset,
    stride_cb,
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
    HAS_MASK_ROWS: tl.constexpr,
    KV_SCALES: tl.constexpr,
    HAS_INT8_TERMS: tl.constexpr,
):
    """Return (m, l, acc) after keys ``[s_lo, s_hi)``.

    Tiles advance by ``KV_STEP`` keys, fewer than BLOCK_KV where a page is no power of two. An
    interior has whole tiles and no right bound.
    """
    o_key = tl.arange(0, BLOCK_KV)
    # what offsets of V add to every column; beside acc, whose loop stays pipelined so
    shift = tl.zeros_like(l)
    for s in range(s_lo, s_hi, KV_STEP):
        tokens = s_hi - s
        if KV_STEP < BLOCK_KV:
            tokens = tl.minimum(tokens, KV_STEP)
        b_k = load_tile(
            p_k + tile_offset(pages, s, page_size, stride_kb, stride_ks),
            o_key, tokens, stride_ks, stride_kd, head_dim, D, IS_INTERIOR, HAS_PADDED_DIM, IS_NZ,
        )  # fmt: skip
        if HAS_INT8_TERMS:
            b_s = dot_terms(b_q, b_q_lo, q_unit, tl.trans(b_k))
        else:
            if KV_SCALES != 0:
                b_k = b_k.to(tl.float32).to(b_q.dtype)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        if KV_SCALES == PER_TOKEN:
            # the tile's scales lie as its keys do, in a row or on a page
            at = tile_offset(pages, s, page_size, stride_cb, 1)
            b_s = scale_logits(
                b_s, b_shift, p_k_scale + at, None if p_k_offset is None else p_k_offset + at,
                o_key, tokens,
            )  # fmt: skip
        elif b_shift is not None:
            b_s += b_shift[:, None]
        b_s *= softmax_scale
        if HAS_SOFTCAP:
            b_s = soft_cap(b_s, softcap, HAS_EXACT_CAP)
        if b_slope is not None:
            b_s = distance_bias(b_s, b_slope, rel, s - diagonal)
        if p_bias is not None:
            b_s = add_bias(b_s, p_bias + s, stride_xr, m_row, o_r, o_key, tokens)
        if p_mask is not None:
            b_s = hide_marked(
                b_s, p_mask + s, stride_mr, mask_fill, m_row, o_r, o_key, tokens, HAS_MASK_ROWS
            )
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
        if KV_SCALES == PER_TOKEN:
            b_p = scale_probabilities(b_p, p_v_scale + at, o_key, tokens)
        if HAS_INT8_TERMS:
            b_p_hi, b_p_lo, p_unit = split_terms(b_p)
            acc = acc * alpha[:, None] + dot_terms(b_p_hi, b_p_lo, p_unit, b_v)
        else:
            if KV_SCALES != 0:
                b_v = b_v.to(tl.float32).to(b_q.dtype)
            acc = tl.dot(b_p.to(b_v.dtype), b_v, acc * alpha[:, None], input_precision="ieee")
        if p_v_offset is not None:
            shift = shift * alpha + offset_values(b_p, p_v_offset + at, o_key, tokens)
        m = m_new
    if p_v_offset is not None:
        acc += shift[:, None]
    return m, l, acc
