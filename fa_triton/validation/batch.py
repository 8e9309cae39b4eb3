"""What ``flash_attn`` and ``flash_attn_metadata`` both say about a batch."""

from __future__ import annotations

from fa_triton.problem import BatchProblem, Side
from fa_triton.validation.masks import Mask


def describe_batch(
    q: Side,
    kv: Side,
    *,
    batch_size: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    layout_out: str,
    page_size: int,
    mask: Mask,
    batch_invariant: bool,
) -> BatchProblem:
    """Put checked sizes together; ``vars`` of the result fills either problem's shared fields."""
    return BatchProblem(
        batch_size=batch_size,
        num_heads_q=num_heads_q,
        num_heads_kv=num_heads_kv,
        head_dim=head_dim,
        layout_q=q.layout,
        layout_kv=kv.layout,
        layout_out=layout_out,
        seqlen_q=q.seqlen,
        seqlen_kv=kv.seqlen,
        total_q=q.total,
        total_kv=kv.total,
        max_seqlen_q=q.max_seqlen,
        max_seqlen_kv=kv.max_seqlen,
        page_size=page_size,
        mask_mode=mask.mode,
        win_left=mask.win_left,
        win_right=mask.win_right,
        has_cu_seqlens_q=q.has_cu_seqlens,
        has_cu_seqlens_kv=kv.has_cu_seqlens,
        has_seqused_q=q.has_seqused,
        has_seqused_kv=kv.has_seqused,
        batch_invariant=batch_invariant,
    )
