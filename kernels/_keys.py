"""Loads of key and value tiles: dense rows, pages of a cache, pages cut into fractals."""

import triton
import triton.language as tl

# head-dimension elements of one fractal of PA_NZ
FRACTAL = tl.constexpr(16)


@triton.jit
def tile_offset(pages, s, page_size, stride_b, stride_s):
    """Return the offset of token ``s`` of a sequence in elements, in 64 bits.

    ``pages`` points to the sequence's row of the block table, or is None for dense tokens. A tile
    never crosses a page, so that its first token places all of it.
    """
    if pages is None:
        offset = s.to(tl.int64) * stride_s
    else:
        page = tl.load(pages + s // page_size)
        offset = page.to(tl.int64) * stride_b + (s % page_size).to(tl.int64) * stride_s
    return offset


@triton.jit
def load_tile(
    p_tile,
    o_key,
    tokens,
    stride_s,
    stride_d,
    head_dim,
    D: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    HAS_PADDED_DIM: tl.constexpr,
    IS_NZ: tl.constexpr,
):
    """Load [BLOCK_KV, D]: the first ``tokens`` rows and ``head_dim`` columns, zeros elsewhere.

    A whole tile has all rows. With ``IS_NZ``, ``stride_d`` leads from one fractal to the next.
    """
    if IS_NZ:
        o_f = tl.arange(0, D // FRACTAL)
        o_e = tl.arange(0, FRACTAL)
        p_nz = (
            p_tile
            + o_key[:, None, None] * stride_s
            + o_f[None, :, None] * stride_d
            + o_e[None, None, :]
        )
        mask = (o_key < tokens)[:, None, None]
        if HAS_PADDED_DIM:
            mask = mask & (o_f * FRACTAL < head_dim)[None, :, None]
        b_tile = tl.reshape(tl.load(p_nz, mask=mask, other=0.0), (o_key.shape[0], D))
    else:
        o_d = tl.arange(0, D)
        p_rows = p_tile + o_key[:, None] * stride_s + o_d[None, :]
        if IS_WHOLE and not HAS_PADDED_DIM:
            b_tile = tl.load(p_rows)
        else:
            mask = (o_key < tokens)[:, None]
            if HAS_PADDED_DIM:
                mask = mask & (o_d < head_dim)[None, :]
            b_tile = tl.load(p_rows, mask=mask, other=0.0)
    return b_tile
