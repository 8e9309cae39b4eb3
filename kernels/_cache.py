"""What comes with the keys of a cache: bias and mask per key, scales of eight-bit keys and values.

A stored integer ``n`` of a key stands for ``(n + offset) * scale``. Per channel, the scale of K
joins q before the loop and that of V the sums after it; per token, both meet the logits and the
probabilities.
"""

import triton
import triton.language as tl

# values of KV_SCALES
NO_SCALES = tl.constexpr(0)
PER_CHANNEL = tl.constexpr(1)
PER_TOKEN = tl.constexpr(2)


@triton.jit
def scale_queries(b_q, k_scale, i_kv, o_d, head_dim):
    """Return q with the scales of K per channel, f32."""
    scale = tl.load(k_scale + i_kv * head_dim + o_d, mask=o_d < head_dim, other=0.0)
    return b_q.to(tl.float32) * scale[None, :]


@triton.jit
def offset_logits(b_q, k_offset, i_kv, o_d, head_dim):
    """Return what the offsets of K per channel add to every logit of a row [M] of scaled q."""
    offset = tl.load(k_offset + i_kv * head_dim + o_d, mask=o_d < head_dim, other=0.0)
    return tl.sum(b_q * offset[None, :], 1)


@triton.jit
def scale_sums(acc, l, v_scale, v_offset, i_kv, o_d, head_dim):
    """Return the sums of P V with the scales and offsets of V per channel."""
    m_d = o_d < head_dim
    if v_offset is not None:
        offset = tl.load(v_offset + i_kv * head_dim + o_d, mask=m_d, other=0.0)
        acc += l[:, None] * offset[None, :]
    return acc * tl.load(v_scale + i_kv * head_dim + o_d, mask=m_d, other=0.0)[None, :]


@triton.jit
def scale_logits(b_s, b_shift, p_scale, p_offset, o_key, tokens):
    """Return q k of stored integers with the scale and offset of every key.

    ``b_shift`` [M] is the sum of q over its columns, which an offset multiplies.
    """
    m_key = o_key < tokens
    if p_offset is not None:
        b_offset = tl.load(p_offset + o_key, mask=m_key, other=0.0)
        b_s += b_shift[:, None] * b_offset[None, :]
    return b_s * tl.load(p_scale + o_key, mask=m_key, other=0.0)[None, :]


@triton.jit
def scale_probabilities(b_p, p_scale, o_key, tokens):
    """Return p times the scales of V per token."""
    return b_p * tl.load(p_scale + o_key, mask=o_key < tokens, other=0.0)[None, :]


@triton.jit
def offset_values(b_p, p_offset, o_key, tokens):
    """Return what the offsets of V per token add to every column of a row [M]; p is scaled."""
    b_offset = tl.load(p_offset + o_key, mask=o_key < tokens, other=0.0)
    return tl.sum(b_p * b_offset[None, :], 1)


@triton.jit
def add_bias(b_s, p_bias, stride_r, m_row, o_r, o_key, tokens):
    """Add a bias [M, N] per row and key."""
    m_tile = m_row[:, None] & (o_key < tokens)[None, :]
    b_bias = tl.load(p_bias + o_r[:, None] * stride_r + o_key[None, :], mask=m_tile, other=0.0)
    return b_s + b_bias.to(tl.float32)


@triton.jit
def hide_marked(
    b_s, p_mask, stride_r, fill, m_row, o_r, o_key, tokens, HAS_MASK_ROWS: tl.constexpr
):
    """Give hidden keys the logit ``fill``: where the byte is not 0, per row or for all rows."""
    m_key = o_key < tokens
    if HAS_MASK_ROWS:
        p_bytes = p_mask + o_r[:, None] * stride_r + o_key[None, :]
        b_mark = tl.load(p_bytes, mask=m_row[:, None] & m_key[None, :], other=0)
        b_s = tl.where(b_mark.to(tl.float32) != 0.0, fill, b_s)
    else:
        b_mark = tl.load(p_mask + o_key, mask=m_key, other=0)
        b_s = tl.where((b_mark.to(tl.float32) != 0.0)[None, :], fill, b_s)
    return b_s
