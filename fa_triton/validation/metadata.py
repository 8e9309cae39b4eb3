"""The contract of ``flash_attn_metadata``: arguments in, frozen problem out."""

from __future__ import annotations

import torch

from fa_triton.layout import is_paged
from fa_triton.problem import MetadataProblem, Side, SideName
from fa_triton.validation.batch import describe_batch
from fa_triton.validation.layouts import check_layouts
from fa_triton.validation.lengths import SideLengths, check_length_tensors, common_batch_size
from fa_triton.validation.masks import check_mask
from fa_triton.validation.pages import check_page_size
from fa_triton.validation.scalars import (
    as_flag,
    as_int,
    as_max_seqlen,
    as_optional_int,
    one_of,
)
from fa_triton.validation.tensors import check_head_dim, check_heads

PLANNERS = ("balanced", "section_stream_k")
# far above any device and any tile; a table and a workspace grow with them
MAX_CORES = 65535
MAX_BLOCK = 65536
# that of incremental attention; flash_attn itself takes less
MAX_HEAD_DIM = 512


def validate_metadata(
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
) -> MetadataProblem:
    """Check every argument of ``flash_attn_metadata`` without reading a device.

    Args:
        num_heads_q: Query heads.
        num_heads_kv: Key/value heads, a divisor of ``num_heads_q``.
        head_dim: Head dimension of q and k.
        cu_seqlens_q: Starts of the packed queries ``[B + 1]``, int32, with TND.
        cu_seqlens_kv: Starts of the packed keys ``[B + 1]``, int32, with TND.
        seqused_q: Actual query lengths ``[B]``, int32, on any device.
        seqused_kv: Actual key lengths ``[B]``, int32, on any device.
        batch_size: Number of sequences, where no tensor tells it.
        max_seqlen_q: Upper bound of the query lengths, and the length that is planned where no
            tensor says it; the sequence axis of a dense q.
        max_seqlen_kv: The same of the key lengths.
        page_size: Tokens of one page, with the paged layouts; None if unknown.
        mask_mode: 0 none, 3 causal, 4 window; None is 0.
        win_left: Visible keys left of the diagonal in mode 4, -1 or None unlimited.
        win_right: Visible keys right of the diagonal in mode 4, -1 or None unlimited.
        layout_q: Layout of q.
        layout_kv: Layout of k and v.
        layout_out: Layout of the result.
        planner: ``"balanced"`` or ``"section_stream_k"``.
        num_aic: Matrix cores to plan for, None for the device's.
        num_aiv: Vector cores to plan for, None for the device's.
        block_q: Rows of a plan block, a multiple of 16, None for the planner's choice.
        block_kv: Keys of a plan block, a multiple of 16, None for the planner's choice.
        batch_invariant: Whether a sequence's result must not depend on the batch.

    Returns:
        The problem: sizes and options, no tensors.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
    """
    heads_q = as_int("num_heads_q", num_heads_q, minimum=1)
    heads_kv = as_int("num_heads_kv", num_heads_kv, minimum=1)
    check_heads("`num_heads_q`", heads_q, heads_kv)
    dim = as_int("head_dim", head_dim, minimum=1)
    check_head_dim("`head_dim`", dim, maximum=MAX_HEAD_DIM)
    layouts = check_layouts(layout_q, layout_kv, layout_out)
    q_lengths = check_length_tensors("q", layouts.q, cu_seqlens_q, seqused_q, None)
    kv_lengths = check_length_tensors("kv", layouts.kv, cu_seqlens_kv, seqused_kv, None)
    size = common_batch_size(
        {
            "batch_size": as_optional_int("batch_size", batch_size, minimum=1),
            "cu_seqlens_q or seqused_q": q_lengths.batch_size,
            "cu_seqlens_kv or seqused_kv": kv_lengths.batch_size,
        }
    )
    max_q = as_max_seqlen("max_seqlen_q", max_seqlen_q)
    max_kv = as_max_seqlen("max_seqlen_kv", max_seqlen_kv)
    invariant = as_flag("batch_invariant", batch_invariant)
    batch = describe_batch(
        _side("q", layouts.q, max_q, q_lengths, size),
        _side("kv", layouts.kv, max_kv, kv_lengths, size),
        batch_size=size,
        num_heads_q=heads_q,
        num_heads_kv=heads_kv,
        head_dim=dim,
        layout_out=layouts.out,
        page_size=check_page_size(layouts.kv, page_size),
        mask=check_mask(mask_mode, win_left, win_right),
        batch_invariant=invariant,
    )
    return MetadataProblem(
        **vars(batch),
        planner=_planner(planner, invariant),
        num_aic=_cores("num_aic", num_aic),
        num_aiv=_cores("num_aiv", num_aiv),
        block_q=_block("block_q", block_q),
        block_kv=_block("block_kv", block_kv),
    )


def _side(
    name: SideName, layout: str, max_seqlen: int, lengths: SideLengths, batch_size: int
) -> Side:
    """One side as far as the arguments tell it; unknown sizes are -1."""
    side = Side(
        name=name,
        layout=layout,
        seqlen=max_seqlen,
        total=-1 if layout == "TND" or max_seqlen < 0 else batch_size * max_seqlen,
        max_seqlen=max_seqlen,
        has_cu_seqlens=lengths.has_cu_seqlens,
        has_seqused=lengths.has_seqused,
    )
    if side.has_length_tensors:
        return side
    packed, paged = layout == "TND", is_paged(layout)
    if not (packed or paged) and max_seqlen < 1:
        raise ValueError(
            f"`max_seqlen_{name}` must be given (the sequence axis) with layout_{name}={layout!r} "
            f"and no seqused_{name}, got {max_seqlen}"
        )
    if max_seqlen < 0:
        tensor = "cu_seqlens" if packed else "seqused"
        raise ValueError(
            f"`{tensor}_{name}` or `max_seqlen_{name}` must be given with layout_{name}={layout!r},"
            " got None for both; the bound alone plans every sequence at that length"
        )
    return side


def _planner(planner: object, batch_invariant: bool) -> str:
    name = one_of("planner", planner, PLANNERS)
    if batch_invariant and name != "balanced":
        raise ValueError(f"`planner` must be 'balanced' with batch_invariant=True, got {name!r}")
    return name


def _cores(name: str, value: object) -> int | None:
    return as_optional_int(name, value, minimum=1, maximum=MAX_CORES)


def _block(name: str, value: object) -> int | None:
    size = as_optional_int(name, value, minimum=16, maximum=MAX_BLOCK)
    if size is not None and size % 16:
        raise ValueError(f"`{name}` must be a multiple of 16, got {size}")
    return size
