"""Chunks of packed or dense sequences, and where their rows lie, shared by the KDA kernels.

A row of the chunk table names (batch entry, first token, valid tokens, sequence). Inputs are read
through strides in any layout; what a phase leaves for the next is head-major, ``[B, HV, T, ..]``.
"""

import triton
import triton.language as tl

CHUNK_WORDS = tl.constexpr(4)


@triton.jit
def chunk_place(chunks, i_chunk):
    """Return (batch entry, first token, valid tokens) of a chunk."""
    p_chunk = chunks + i_chunk * CHUNK_WORDS
    return tl.load(p_chunk), tl.load(p_chunk + 1), tl.load(p_chunk + 2)


@triton.jit
def token_base(i_b, i_t, i_h, stride_b, stride_t, stride_h):
    """Return the offset of a token of a head in a strided tensor, 64 bits."""
    return i_b.to(tl.int64) * stride_b + i_t.to(tl.int64) * stride_t + i_h.to(tl.int64) * stride_h


@triton.jit
def head_major_row(i_b, i_t, i_h, num_heads, num_tokens):
    """Return the number of the row of a token in a head-major tensor, 64 bits."""
    return (i_b.to(tl.int64) * num_heads + i_h) * num_tokens + i_t
