"""Attention functions as torch_npu declares them.

``from fa_triton.compat.torch_npu import npu_incre_flash_attention`` replaces the function of
torch_npu: same names, order and defaults, the same result for every call that CANN documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from fa_triton.incremental import incre_flash_attention
from fa_triton.validation.optional_tensors import as_given


def npu_incre_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
) -> torch.Tensor:
    """Call :func:`fa_triton.incremental.incre_flash_attention` with torch_npu's arguments.

    Args:
        query: Queries, as there; one token per sequence in torch_npu.
        key: Keys, as there.
        value: Values, as there.
        padding_mask: Reserved by torch_npu, which does not read it: must be None.
        atten_mask: Hidden keys, as there.
        pse_shift: Bias, as there.
        actual_seq_lengths: Keys per sequence, as there.
        antiquant_scale: Scales of an int8 cache, per tensor ``[2]`` or per channel.
        antiquant_offset: Its offsets.
        block_table: Page ids, as there.
        dequant_scale1: Must be None, as there.
        quant_scale1: Must be None, as there.
        dequant_scale2: Must be None, as there.
        quant_scale2: Scale of an int8 result, as there.
        quant_offset2: Its offset.
        kv_padding_size: Left padding, as there.
        num_heads: Query heads.
        scale_value: Multiplies q·k.
        input_layout: BSH, BSND or BNSD.
        num_key_value_heads: Key/value heads, 0 for ``num_heads``.
        block_size: Tokens of a page.
        inner_precise: 0 or 1.

    Returns:
        The result in the shape of the query. A row whose every key is hidden is the mean of the
        values over the actual length, as CANN's kernels leave it.

    Raises:
        ValueError: A shape or value out of its range; a ``padding_mask``.
        TypeError: A dtype or type out of its set.
        NotImplementedError: An int8 query, an int4 cache, a tensor that requires a gradient.

    Notes:
        Nothing is mutated; no host sync. Source: torch_npu ``npu_incre_flash_attention``.
    """
    if as_given("padding_mask", padding_mask) is not None:
        raise ValueError(
            "`padding_mask` must be None (torch_npu reserves the name and does not read it), got a "
            "tensor; use atten_mask to hide keys"
        )
    scale = as_given("antiquant_scale", antiquant_scale)
    # torch_npu knows these two modes only, so no shape is ambiguous.
    mode = None
    if scale is not None:
        mode = "per_tensor" if scale.ndim == 1 else "per_channel"
    out = incre_flash_attention(  # a pair only with return_softmax_lse
        query,
        key,
        value,
        pse_shift=pse_shift,
        atten_mask=atten_mask,
        actual_seq_lengths=actual_seq_lengths,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        block_table=block_table,
        kv_padding_size=kv_padding_size,
        quant_scale2=quant_scale2,
        quant_offset2=quant_offset2,
        dequant_scale1=dequant_scale1,
        quant_scale1=quant_scale1,
        dequant_scale2=dequant_scale2,
        num_heads=num_heads,
        scale_value=scale_value,
        input_layout=input_layout,
        num_key_value_heads=num_key_value_heads,
        block_size=block_size,
        inner_precise=inner_precise,
        antiquant_mode=mode,
        masked_row="mean",
    )
    return cast("torch.Tensor", out)
