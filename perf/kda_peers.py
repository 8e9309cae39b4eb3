"""The chunked forward in plain torch, vectorised over chunks and heads: what ours is timed against.

The recurrence over chunks is the only loop besides one over blocks of 16 rows, whose first row is
the reference that keeps exponents small; with an unbounded gate the diagonal blocks take every
difference of gates apart. Inputs are prepared in the layout that suits torch, which is not timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from perf.kda_workloads import KdaInputs

Call = Callable[[], torch.Tensor]

_BLOCK = 16
_LOWER_BOUND = -5.0
# exponents that a bounded gate reaches inside a block, and the smallest of float32
_LARGEST, _SMALLEST = 120.0, -126.0


@dataclass(frozen=True)
class _Chunked:
    """Rows as ``[H, chunks, C, ..]``, contiguous."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    rate: torch.Tensor
    bias: torch.Tensor
    state: torch.Tensor
    is_bounded: bool

    @classmethod
    def of(cls, inputs: KdaInputs) -> _Chunked:
        w = inputs.workload

        def chunked(x: torch.Tensor) -> torch.Tensor:
            rows = x[0].transpose(0, 1).contiguous()
            return rows.reshape(w.num_heads, -1, w.chunk_size, *x.shape[3:])

        return cls(
            *map(chunked, inputs.rows),
            rate=inputs.A_log.exp().view(-1, 1, 1, 1),
            bias=inputs.dt_bias.view(w.num_heads, 1, 1, w.key_dim),
            state=inputs.initial_state[0],
            is_bounded=w.is_bounded,
        )


def peers(inputs: KdaInputs) -> dict[str, Call]:
    """Forward in torch with products in float32, and in the dtype of q; result ``[H, T, V]``."""
    rows = _Chunked.of(inputs)
    names = {torch.float32: "torch fp32", inputs.q.dtype: "torch 16-bit products"}
    return {name: lambda dtype=dtype: _forward(rows, dtype) for dtype, name in names.items()}


def as_layout(result: torch.Tensor, inputs: KdaInputs) -> torch.Tensor:
    """Bring a peer's result to layout BSND and the dtype of q."""
    return result.transpose(0, 1)[None].to(inputs.q.dtype)


def _forward(x: _Chunked, dtype: torch.dtype) -> torch.Tensor:
    scale = x.q.shape[-1] ** -0.5
    raw = x.g + x.bias
    if x.is_bounded:
        decay = torch.sigmoid(x.rate * raw).mul_(_LOWER_BOUND / math.log(2))
    else:
        decay = softplus(raw).mul_(x.rate * (-1 / math.log(2)))
    gk = decay.cumsum(2)
    q, k, v, beta = x.q.float(), x.k.float(), x.v.float(), x.beta[..., None]
    qk, kk = _scores(q, k, gk, is_bounded=x.is_bounded)
    qk = qk.mul_(scale).to(dtype)
    eye = torch.eye(kk.shape[-1])
    inverse = torch.linalg.solve_triangular(
        kk.mul_(beta), eye.expand_as(kk), upper=False, unitriangular=True
    ).to(dtype)
    grown = torch.exp2(gk)
    w = inverse @ (k * grown).mul_(beta).to(dtype)
    u = inverse @ (v * beta).to(dtype)
    last = gk[:, :, -1:]
    kg = torch.exp2(last - gk).mul_(k).to(dtype).mT
    qg = (q * grown).mul_(scale).to(dtype)
    kept = torch.exp2(last).mT
    state = x.state
    new, states = torch.empty_like(u), u.new_empty(*u.shape[:2], *state.shape[1:])
    for chunk in range(u.shape[1]):
        states[:, chunk] = state
        new[:, chunk] = u[:, chunk] - w[:, chunk] @ states[:, chunk]
        state = state * kept[:, chunk] + (kg[:, chunk] @ new[:, chunk]).float()
    out = (qg @ states).float().add_((qk @ new).float())
    return out.flatten(1, 2).to(x.q.dtype)


def _scores(
    q: torch.Tensor, k: torch.Tensor, gk: torch.Tensor, *, is_bounded: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decayed products of queries and keys, and of keys: lower triangles, no scale, no beta."""
    size = q.shape[2]
    qk, kk = (q.new_zeros(*q.shape[:2], size, size) for _ in range(2))
    for first in range(0, size, _BLOCK):
        end = first + _BLOCK
        columns = end if is_bounded else first
        reference = gk[:, :, first : first + 1]
        if columns:
            decay = torch.exp2((gk[:, :, first:end] - reference).clamp_(min=_SMALLEST))
            grown = torch.exp2((reference - gk[:, :, :columns]).clamp_(max=_LARGEST))
            keys = grown.mul_(k[:, :, :columns]).mT
            qk[:, :, first:end, :columns] = (q[:, :, first:end] * decay) @ keys
            kk[:, :, first:end, :columns] = (k[:, :, first:end] * decay) @ keys
        if not is_bounded:
            rows = gk[:, :, first:end]
            factor = torch.exp2((rows[:, :, :, None] - rows[:, :, None]).clamp_(max=0.0))
            factor *= k[:, :, None, first:end]
            left = torch.stack([q[:, :, first:end], k[:, :, first:end]], -1)
            blocks = factor @ left
            qk[:, :, first:end, first:end] = blocks[..., 0]
            kk[:, :, first:end, first:end] = blocks[..., 1]
    return qk.tril_(), kk.tril_(-1)
