"""``flash_attn`` and ``flash_attn_metadata``: what they take, return and promise.

The flow of a call is in ``attention/calls.py``; under tracing the same flow runs inside the
operators of ``fa_triton.ops``.
"""

from __future__ import annotations

import torch

from fa_triton.attention.calls import attend, plan_batch
from fa_triton.ops.routing import goes_through_dispatcher
from fa_triton.problem import AttnOptions, MetadataOptions


def flash_attn_metadata(
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    *,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_kv: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_kv: torch.Tensor | None = None,
    batch_size: int | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    page_size: int | None = None,
    mask_mode: int | None = 0,
    win_left: int | None = -1,
    win_right: int | None = -1,
    layout_q: str = "BSND",
    layout_kv: str = "BSND",
    layout_out: str = "BSND",
    planner: str = "balanced",
    num_aic: int | None = None,
    num_aiv: int | None = None,
    block_q: int | None = None,
    block_kv: int | None = None,
    batch_invariant: bool = False,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Plan the attention of one batch; every layer with the same lengths reuses the table.

    Args:
        num_heads_q: Query heads Nq.
        num_heads_kv: Key/value heads Nkv, a divisor of Nq.
        head_dim: Head dimension D.
        cu_seqlens_q: Starts of the packed queries ``[B + 1]``, int32, with TND.
        cu_seqlens_kv: Starts of the packed keys ``[B + 1]``, int32, with TND.
        seqused_q: Actual query lengths ``[B]``, int32.
        seqused_kv: Actual key lengths ``[B]``, int32.
        batch_size: Number of sequences B, where no tensor tells it.
        max_seqlen_q: Upper bound of the query lengths. Where no tensor gives them, every sequence
            is planned at this length: the sequence axis of a dense q, or any bound for TND.
        max_seqlen_kv: Upper bound of the key lengths, likewise, also for pages.
        page_size: Tokens of one page of a paged layout; the plan then cuts keys where the kernels
            can.
        mask_mode: 0 none, 3 causal, 4 window; aligned bottom-right.
        win_left: Visible keys left of the diagonal in mode 4, -1 unlimited.
        win_right: Visible keys right of the diagonal in mode 4, -1 unlimited.
        layout_q: Layout of q: BSND, BNSD or TND.
        layout_kv: Layout of k and v.
        layout_out: Layout of the result.
        planner: ``"balanced"``, or ``"section_stream_k"`` for CANN's table.
        num_aic: Matrix cores to plan for, None for the device's.
        num_aiv: Vector cores to plan for, None for two per matrix core.
        block_q: Rows of a plan block, None for the planner's choice.
        block_kv: Keys of a plan block, None for the planner's choice.
        batch_invariant: Whether a sequence's result must not depend on the rest of the batch; the
            same in the call of ``flash_attn``.
        device: Where the table goes; None for that of the length tensors, else torch's default.

    Returns:
        The table, int32 ``[words]``; word by word in ``docs/planner.md``.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A device that is neither npu, cuda nor cpu.

    Notes:
        Host sync: length tensors on a device are copied to the host; without them there is none.
        A table serves all lengths up to the planned ones: ``flash_attn`` takes the actual lengths
        from its own tensors on the device (graph replay). The exception is ``section_stream_k``
        with a left window, which assumes the very lengths it was given. Nothing is mutated.
        Source: CANN ``flash_attn_metadata``.
    """
    options: MetadataOptions = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_kv": cu_seqlens_kv,
        "seqused_q": seqused_q,
        "seqused_kv": seqused_kv,
        "batch_size": batch_size,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_kv": max_seqlen_kv,
        "page_size": page_size,
        "mask_mode": mask_mode,
        "win_left": win_left,
        "win_right": win_right,
        "layout_q": layout_q,
        "layout_kv": layout_kv,
        "layout_out": layout_out,
        "planner": planner,
        "num_aic": num_aic,
        "num_aiv": num_aiv,
        "block_q": block_q,
        "block_kv": block_kv,
        "batch_invariant": batch_invariant,
    }
    if goes_through_dispatcher(cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv):
        return torch.ops.fa_triton.flash_attn_metadata(
            num_heads_q, num_heads_kv, head_dim, **options, device=device
        )
    return plan_batch(num_heads_q, num_heads_kv, head_dim, **options, device=device).table


def flash_attn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    block_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_kv: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_kv: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    metadata: torch.Tensor | None = None,
    softmax_scale: float = 1.0,
    mask_mode: int | None = 0,
    win_left: int | None = -1,
    win_right: int | None = -1,
    max_seqlen_q: int | None = -1,
    max_seqlen_kv: int | None = -1,
    layout_q: str = "BSND",
    layout_kv: str = "BSND",
    layout_out: str = "BSND",
    return_softmax_lse: bool = False,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    lse_includes_sink: bool = False,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries over keys and values, forward only.

    Args:
        q: Queries, fp16, bf16 or fp32, last dim dense: BSND ``[B, Sq, Nq, D]``, BNSD
            ``[B, Nq, Sq, D]`` or TND ``[Tq, Nq, D]``.
        k: Keys, dtype of q, Nkv heads, in the layout of q or in pages of bs tokens: PA_BBND
            ``[P, bs, Nkv, D]``, PA_BNBD ``[P, Nkv, bs, D]`` or PA_NZ ``[P, Nkv, D/16, bs, 16]``;
            all strides but the last are free.
        v: Values, as k; their strides and their head dim may differ.
        block_table: Page ids ``[B, pages]``, int32, with the paged layouts; entries behind the last
            used page of a sequence are never followed.
        cu_seqlens_q: Starts of the packed queries ``[B + 1]``, int32, with TND.
        cu_seqlens_kv: Starts of the packed keys ``[B + 1]``, int32, with TND.
        seqused_q: Actual query lengths ``[B]``, int32; they win over ``cu_seqlens_q``.
        seqused_kv: Actual key lengths ``[B]``, int32; 0 allowed; needed with pages.
        sinks: One logit per query head ``[Nq]``, fp32, that joins the denominator.
        attn_mask: CANN's template ``triu(ones(2048, 2048), 1)``, int8; checked, never read.
        metadata: Table of ``flash_attn_metadata`` for this problem; None plans inside the call.
        softmax_scale: Multiplies q·k; natural-log logits. The default is 1.0, not ``D**-0.5``.
        mask_mode: 0 none, 3 causal, 4 window; aligned bottom-right by actual lengths.
        win_left: Visible keys left of the diagonal in mode 4, -1 unlimited.
        win_right: Visible keys right of the diagonal in mode 4, -1 unlimited.
        max_seqlen_q: Upper bound of the query lengths, -1 unknown; without ``metadata`` on an
            accelerator what is planned for.
        max_seqlen_kv: Upper bound of the key lengths, likewise.
        layout_q: Layout of q.
        layout_kv: Layout of k and v: that of q, or a paged one.
        layout_out: Layout of the result: that of q, or BSND for BNSD queries.
        return_softmax_lse: Whether the log-sum-exp is wanted.
        softcap: Bound of the logits by ``softcap * tanh(logit / softcap)``, 0 for none.
        alibi_slopes: One slope per query head ``[Nq]``, fp32: a key at distance n from the diagonal
            loses ``slope * n``.
        lse_includes_sink: Whether the log-sum-exp counts the sinks.
        batch_invariant: Whether the bits of a sequence's result must not depend on the rest of the
            batch; the same in ``flash_attn_metadata``.

    Returns:
        ``out`` in q's dtype and ``layout_out``; ``softmax_lse`` fp32, natural log, ``[B, Nq, Sq]``
        or ``[Nq, Tq]`` for TND, or ``[1]`` zero where it is not wanted. Rows without a visible
        key and padding rows are 0 and +inf.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient; a call inside ``torch.vmap`` or
            ``torch.func.grad``.

    Notes:
        Bitwise reproducible for one plan. Host sync: to copy length tensors from a device if there
        is neither ``metadata`` nor ``max_seqlen`` for each side that has them, and to read the
        header of a copied table after a write to it.
        Nothing is mutated. Query tokens past the longest planned query count as padding.
        On A2 and A3 PA_NZ takes memory for a copy of the pages in use (``docs/flash_attn.md``).
        ``FA_TRITON_CHECK_VALUES=1`` checks lengths, page ids and tables on the device, with a sync.
        Under ``torch.compile`` and on fake or meta tensors it is ``torch.ops.fa_triton.flash_attn``
        (``docs/torch.md``). A non-finite
        value in a key or value row reaches every row of the tile that loads it, also rows that do
        not see it. Source: CANN ``flash_attn``.
    """
    options: AttnOptions = {
        "block_table": block_table,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_kv": cu_seqlens_kv,
        "seqused_q": seqused_q,
        "seqused_kv": seqused_kv,
        "sinks": sinks,
        "attn_mask": attn_mask,
        "metadata": metadata,
        "softmax_scale": softmax_scale,
        "mask_mode": mask_mode,
        "win_left": win_left,
        "win_right": win_right,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_kv": max_seqlen_kv,
        "layout_q": layout_q,
        "layout_kv": layout_kv,
        "layout_out": layout_out,
        "return_softmax_lse": return_softmax_lse,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "lse_includes_sink": lse_includes_sink,
        "batch_invariant": batch_invariant,
    }
    if goes_through_dispatcher(
        q,
        k,
        v,
        block_table,
        cu_seqlens_q,
        cu_seqlens_kv,
        seqused_q,
        seqused_kv,
        sinks,
        metadata,
        alibi_slopes,
    ):
        return torch.ops.fa_triton.flash_attn(q, k, v, **options)
    return attend(q, k, v, **options)
