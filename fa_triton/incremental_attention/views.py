"""Tensors of a validated call in one form each, whatever shape the caller chose.

All but the fp32 scales are views: nothing is copied, strides may be 0 where an axis is shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from fa_triton.layout import LAYOUTS

if TYPE_CHECKING:
    from fa_triton.incremental_problem import Cache, IncreOptions, IncreProblem


def given_options(options: IncreOptions) -> IncreOptions:
    """The options that are there: an empty tensor counts as absent."""
    return cast(
        "IncreOptions",
        {
            name: value
            for name, value in options.items()
            if value is None or not isinstance(value, torch.Tensor) or value.numel()
        },
    )


def query_view(tensor: torch.Tensor, problem: IncreProblem) -> torch.Tensor:
    """View a tensor of the query's shape in ``attn.layout_q``: ``[B, Sq, N, D]`` or BNSD."""
    if problem.input_layout != "BSH":
        return tensor
    return tensor.view(*tensor.shape[:-1], problem.attn.num_heads_q, problem.attn.head_dim)


def cache_views(cache: Cache, problem: IncreProblem) -> list[torch.Tensor]:
    """Views of key or value in ``attn.layout_kv``: one per sequence of a list, else one."""
    attn = problem.attn
    tensors = [cache] if isinstance(cache, torch.Tensor) else list(cache)
    if tensors[0].ndim == LAYOUTS[attn.layout_kv].rank:
        return tensors
    return [tensor.view(*tensor.shape[:-1], attn.num_heads_kv, attn.head_dim) for tensor in tensors]


def mask_view(atten_mask: torch.Tensor, problem: IncreProblem) -> torch.Tensor:
    """View a mask as int8 ``[B, N, Sq, S']``, nonzero where a key is hidden."""
    attn = problem.attn
    mask = atten_mask.view(torch.int8)
    while mask.ndim < 4:
        mask = mask.unsqueeze(-2)
    return mask.expand(attn.batch_size, attn.num_heads_q, attn.seqlen_q, mask.shape[-1])


def bias_view(pse_shift: torch.Tensor, problem: IncreProblem) -> torch.Tensor:
    """View a bias as ``[B, N, Sq, S']``."""
    attn = problem.attn
    return pse_shift.expand(attn.batch_size, -1, attn.seqlen_q, -1)


def antiquant_table(tensor: torch.Tensor, problem: IncreProblem) -> torch.Tensor:
    """Bring scales or offsets of an int8 cache into fp32 tables; ``[0]`` is of the keys.

    Returns:
        ``[2, Nkv, D]`` per tensor and per channel, a view of one element per tensor; per token
        ``[2, B, 1, S']`` or ``[2, P, 1, page]``, per token and head with Nkv instead of 1.
    """
    attn = problem.attn
    table = tensor.float()
    if problem.quant == "per_tensor":
        return table.view(2, 1, 1).expand(2, attn.num_heads_kv, attn.head_dim)
    if problem.quant == "per_channel":
        return table.reshape(2, attn.num_heads_kv, attn.head_dim)
    return table.unsqueeze(2) if problem.quant == "per_token" else table


def output_quant_view(tensor: torch.Tensor, problem: IncreProblem) -> torch.Tensor:
    """Bring scale or offset of the result into fp32, to broadcast over ``attn.layout_out``."""
    attn = problem.attn
    numbers = tensor.float().reshape(-1)
    if problem.output_quant == "per_tensor":
        return numbers
    columns = numbers.view(attn.num_heads_q, attn.head_dim)
    return columns[:, None] if attn.layout_out == "BNSD" else columns
