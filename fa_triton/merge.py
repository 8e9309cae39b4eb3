"""Merging the attention of one set of queries over two disjoint sets of keys."""

from __future__ import annotations

import torch

from fa_triton.attention.merging import merge_states
from fa_triton.ops.routing import goes_through_dispatcher
from fa_triton.validation import validate_states


def merge_attn_states(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    *,
    layout: str = "TND",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge two results of ``flash_attn`` for the same queries over disjoint keys.

    Serves attention to a shared prefix (cascade) and context parallelism. The merge is associative
    and symmetric up to rounding.

    Args:
        out_a: First result in ``layout``, fp16, bf16 or fp32.
        lse_a: Its log-sum-exp, fp32: ``(B, Nq, Sq)``, or ``(Nq, Tq)`` for TND. +inf and -inf both
            mean that the row saw no key; its result is then not read.
        out_b: Second result, shape, dtype and device of the first.
        lse_b: Its log-sum-exp.
        layout: Layout of the results: TND, BSND or BNSD.

    Returns:
        out in the dtype of ``out_a``; lse fp32, natural log. A row that saw no key in either part
        is 0 and +inf.

    Raises:
        ValueError: A shape or device that does not fit.
        TypeError: A dtype that does not fit.
        NotImplementedError: A part that requires a gradient; attention is forward only.

    Notes: Deterministic, elementwise in fp32, never synchronises. Sinks belong into one of the
        parts, with ``lse_includes_sink=True``: its log-sum-exp must count all that its result was
        divided by. The merged one then counts them too.
    """
    parts = (out_a, lse_a, out_b, lse_b)
    if goes_through_dispatcher(*parts):
        return torch.ops.fa_triton.merge_attn_states(*parts, layout=layout)
    validate_states(*parts, layout)
    return merge_states(*parts, layout)
