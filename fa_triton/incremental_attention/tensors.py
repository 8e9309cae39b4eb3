"""Tensors of a validated call as the attention kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fa_triton.attention.kernels import CacheTensors, KeyTensors
from fa_triton.attention.operands import RowOperand, per_key_operand
from fa_triton.incremental_attention.views import (
    antiquant_table,
    bias_view,
    cache_views,
    mask_view,
)
from fa_triton.layout import strides

if TYPE_CHECKING:
    from fa_triton.attention.rows import RowUnits
    from fa_triton.incremental_attention.spans import KeySpans
    from fa_triton.incremental_problem import Cache, IncreOptions, IncreProblem

# Logits of hidden keys. The kernels' running maximum starts at -0.5e30: a row that has nothing
# above that is empty, one that has nothing but the second value is the mean of its values.
HIDDEN = {"zero": -1.0e30, "mean": -0.4e30}


def key_tensors(
    key: Cache, value: Cache, block_table: torch.Tensor | None, problem: IncreProblem
) -> KeyTensors:
    """Views of the cache; of a list the tensors from which the others are told by offsets."""
    keys, values = cache_views(key, problem), cache_views(value, problem)
    base = _base_of(keys)
    return KeyTensors(keys[base], values[base], block_table)


def cache_tensors(
    key: Cache,
    value: Cache,
    options: IncreOptions,
    problem: IncreProblem,
    units: RowUnits,
    spans: KeySpans,
) -> CacheTensors:
    """What keys and values have beside themselves."""
    bias, mask = options.get("pse_shift"), options.get("atten_mask")
    scale, offset = options.get("antiquant_scale"), options.get("antiquant_offset")
    return CacheTensors(
        places=_places(key, value, problem, spans.first_columns),
        first_columns=spans.first_columns,
        bias=_rows(bias_view(bias, problem), problem, units)
        if problem.has_bias and bias is not None
        else None,
        key_mask=_rows(mask_view(mask, problem), problem, units)
        if problem.mask_form is not None and mask is not None
        else None,
        hidden_logit=HIDDEN[problem.masked_row],
        scale=_tables(scale, problem) if problem.quant and scale is not None else None,
        offset=_tables(offset, problem)
        if problem.has_antiquant_offset and offset is not None
        else None,
    )


def _rows(view: torch.Tensor, problem: IncreProblem, units: RowUnits) -> RowOperand:
    return per_key_operand(view, problem.attn, units)


def _tables(tensor: torch.Tensor, problem: IncreProblem) -> torch.Tensor:
    table = antiquant_table(tensor, problem)
    if table.ndim == 3:
        return table.contiguous()
    return table.expand(-1, -1, problem.attn.num_heads_kv, -1)


def _places(
    key: Cache, value: Cache, problem: IncreProblem, first_columns: torch.Tensor | None
) -> torch.Tensor | None:
    """Where the keys of each sequence lie, as ``CacheTensors.places`` says.

    A kernel gets one pointer to k: tensors of a list are told by how far they lie from the first.
    """
    keys, values = cache_views(key, problem), cache_views(value, problem)
    layout = problem.attn.layout_kv
    if problem.is_list:
        base = _base_of(keys)
        places = [
            (
                _elements(keys[base], k),
                _elements(values[base], v),
                strides(k, layout).head,
                strides(v, layout).head,
            )
            for k, v in zip(keys, values, strict=True)
        ]
        return torch.tensor(places, dtype=torch.int64).to(keys[0].device)
    if first_columns is None:
        return None
    by = [strides(tensor, layout) for tensor in (keys[0], values[0])]
    batch = torch.arange(problem.attn.batch_size, device=first_columns.device)
    first = first_columns.to(torch.int64)
    columns = [batch * s.outer + first * s.token for s in by]
    heads = [torch.full_like(batch, s.head) for s in by]
    return torch.stack([*columns, *heads], dim=1)


def _base_of(tensors: Sequence[torch.Tensor]) -> int:
    """Position of the largest tensor, whose stride from token to token is that of all."""
    return max(range(len(tensors)), key=lambda i: tensors[i].numel())


def _elements(first: torch.Tensor, other: torch.Tensor) -> int:
    return (other.data_ptr() - first.data_ptr()) // first.element_size()
