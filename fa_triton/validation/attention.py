"""The contract of ``flash_attn``: arguments in, frozen problem out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa_triton.layout import is_paged
from fa_triton.problem import AttnProblem, Side
from fa_triton.validation.batch import describe_batch
from fa_triton.validation.layouts import Layouts, check_layouts
from fa_triton.validation.lengths import (
    check_length_tensors,
    common_batch_size,
    require_length_tensors,
)
from fa_triton.validation.masks import check_mask
from fa_triton.validation.pages import check_pages
from fa_triton.validation.scalars import MAX_FLOAT32, as_flag, as_float, as_max_seqlen
from fa_triton.validation.tensors import (
    check_forms_agree,
    check_operand,
    check_operand_form,
    check_operands_agree,
    check_small_tensor,
    refuse_gradient,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.problem import AttnOptions

HEADER_WORDS = 16
MIN_SOFTCAP = 1e-6
MAX_SOFTCAP = 1e30


def validate_flash_attn(
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
) -> AttnProblem:
    """Check every argument of ``flash_attn`` without reading a device.

    Args:
        q: Queries, fp16, bf16 or fp32, last dim dense; the other strides are free.
        k: Keys, dtype of q.
        v: Values, dtype of q.
        block_table: Page ids ``[B, pages]``, int32, with the paged layouts.
        cu_seqlens_q: Starts of the packed queries ``[B + 1]``, int32, with TND.
        cu_seqlens_kv: Starts of the packed keys ``[B + 1]``, int32, with TND.
        seqused_q: Actual query lengths ``[B]``, int32.
        seqused_kv: Actual key lengths ``[B]``, int32.
        sinks: One logit per query head ``[Nq]``, fp32, that has no value.
        attn_mask: The template ``triu(ones(2048, 2048), 1)``, int8; checked, never read.
        metadata: Plan of ``flash_attn_metadata``, int32.
        softmax_scale: Multiplies q·k; any finite number.
        mask_mode: 0 none, 3 causal, 4 window; None is 0.
        win_left: Visible keys left of the diagonal in mode 4, -1 or None unlimited.
        win_right: Visible keys right of the diagonal in mode 4, -1 or None unlimited.
        max_seqlen_q: Upper bound of the query lengths, -1 or None unknown.
        max_seqlen_kv: Upper bound of the key lengths, -1 or None unknown.
        layout_q: Layout of q: BSND, BNSD or TND.
        layout_kv: Layout of k and v: that of q, or a paged one.
        layout_out: Layout of the result: that of q, or BSND for BNSD queries.
        return_softmax_lse: Whether the log-sum-exp is wanted.
        softcap: Bound of the logits, 0 for none.
        alibi_slopes: Slopes of a distance bias ``[Nq]``, fp32.
        lse_includes_sink: Whether the log-sum-exp counts the sinks.
        batch_invariant: Whether a sequence's result must not depend on the batch.

    Returns:
        The problem: sizes and options, no tensors.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.
    """
    layouts = check_layouts(layout_q, layout_kv, layout_out)
    q_extents = check_operand("q", q, layouts.q)
    k_extents = check_operand("k", k, layouts.kv)
    v_extents = check_operand("v", v, layouts.kv)
    check_operands_agree(q, k, v, q_extents, k_extents, v_extents)
    device = q.device

    q_lengths = check_length_tensors("q", layouts.q, cu_seqlens_q, seqused_q, device)
    kv_lengths = check_length_tensors("kv", layouts.kv, cu_seqlens_kv, seqused_kv, device)
    require_length_tensors("q", layouts.q, q_lengths)
    require_length_tensors("kv", layouts.kv, kv_lengths)
    packed_q, packed_kv = layouts.q == "TND", layouts.kv == "TND"
    paged = is_paged(layouts.kv)
    batch_size = common_batch_size(
        {
            "q": None if packed_q else q_extents.outer,
            "k": None if packed_kv or paged else k_extents.outer,
            "cu_seqlens_q or seqused_q": q_lengths.batch_size,
            "cu_seqlens_kv or seqused_kv": kv_lengths.batch_size,
        }
    )
    pages = check_pages(layouts.kv, block_table, k_extents, v_extents, batch_size, device)
    max_q = as_max_seqlen("max_seqlen_q", max_seqlen_q)
    max_kv = as_max_seqlen("max_seqlen_kv", max_seqlen_kv)
    mask = check_mask(mask_mode, win_left, win_right, attn_mask)

    num_heads_q = q_extents.heads
    for name, per_head in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        if per_head is not None:
            check_small_tensor(
                name,
                per_head,
                dtype=torch.float32,
                shape=(num_heads_q,),
                device=device,
                meaning=f"({num_heads_q},), one per query head",
            )
            refuse_gradient(name, per_head)
    if metadata is not None:
        check_metadata_tensor(metadata, device)

    seqlen_q = max_q if packed_q else q_extents.tokens
    seqlen_kv = pages.capacity if paged else max_kv if packed_kv else k_extents.tokens
    q_side = Side(
        name="q",
        layout=layouts.q,
        seqlen=seqlen_q,
        total=q_extents.tokens if packed_q else batch_size * seqlen_q,
        max_seqlen=max_q,
        has_cu_seqlens=q_lengths.has_cu_seqlens,
        has_seqused=q_lengths.has_seqused,
    )
    kv_side = Side(
        name="kv",
        layout=layouts.kv,
        seqlen=seqlen_kv,
        total=k_extents.tokens if packed_kv else batch_size * seqlen_kv,
        max_seqlen=max_kv,
        has_cu_seqlens=kv_lengths.has_cu_seqlens,
        has_seqused=kv_lengths.has_seqused,
    )
    _check_known_length(q_side)
    _check_known_length(kv_side)
    batch = describe_batch(
        q_side,
        kv_side,
        batch_size=batch_size,
        num_heads_q=num_heads_q,
        num_heads_kv=k_extents.heads,
        head_dim=q_extents.head_dim,
        layout_out=layouts.out,
        page_size=pages.page_size,
        mask=mask,
        batch_invariant=as_flag("batch_invariant", batch_invariant),
    )
    scale = as_float("softmax_scale", softmax_scale)
    return AttnProblem(
        **vars(batch),
        head_dim_v=v_extents.head_dim,
        dtype=q.dtype,
        device=device,
        softmax_scale=scale,
        has_sinks=sinks is not None,
        has_alibi_slopes=alibi_slopes is not None,
        softcap=check_softcap(softcap, scale),
        return_softmax_lse=as_flag("return_softmax_lse", return_softmax_lse),
        lse_includes_sink=as_flag("lse_includes_sink", lse_includes_sink),
    )


def check_call_form(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Unpack[AttnOptions]
) -> Layouts:
    """Check what does not depend on sizes, while a graph for many sizes is traced.

    Returns:
        The layouts, which the ranks of q, k and v fit.
    """
    layouts = check_layouts(
        options.get("layout_q", "BSND"),
        options.get("layout_kv", "BSND"),
        options.get("layout_out", "BSND"),
    )
    for name, tensor, layout in (("q", q, layouts.q), ("k", k, layouts.kv), ("v", v, layouts.kv)):
        check_operand_form(name, tensor, layout)
    check_forms_agree(q, k, v)
    check_mask(options.get("mask_mode"), options.get("win_left"), options.get("win_right"))
    return layouts


def _check_known_length(side: Side) -> None:
    """An upper bound must not lie below a length that the host knows."""
    if not side.has_length_tensors and 0 <= side.max_seqlen < side.seqlen:
        raise ValueError(
            f"`max_seqlen_{side.name}` must be at least the sequence axis {side.seqlen}, "
            f"got {side.max_seqlen}"
        )


def check_metadata_tensor(metadata: object, device: torch.device) -> None:
    """Check the form of a plan; its words stay unread."""
    tensor = check_small_tensor(
        "metadata",
        metadata,
        dtype=torch.int32,
        shape=(None,),
        device=device,
        meaning="(words,), as flash_attn_metadata returns it",
    )
    if tensor.shape[0] < HEADER_WORDS:
        raise ValueError(
            f"`metadata` must have at least {HEADER_WORDS} words, got {tensor.shape[0]}; "
            "use the tensor that flash_attn_metadata returns"
        )


def check_softcap(
    softcap: object, softmax_scale: float, scale_name: str = "softmax_scale"
) -> float:
    """A cap whose quotient with the scale is a normal number of the kernels' float32."""
    cap = as_float("softcap", softcap)
    if cap and not MIN_SOFTCAP <= cap <= MAX_SOFTCAP:
        raise ValueError(
            f"`softcap` must be 0 (none) or lie between {MIN_SOFTCAP} and {MAX_SOFTCAP}, got {cap}"
        )
    if cap and abs(2 * softmax_scale / cap) > MAX_FLOAT32:
        raise ValueError(
            f"`softcap` must not be so small that {scale_name} / softcap overflows float32, "
            f"got {cap} with {scale_name}={softmax_scale}"
        )
    return cap
