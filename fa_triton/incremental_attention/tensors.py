"""Tensors of a validated call as the attention kernels read them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from fa_triton.attention.kernels import CacheTensors, KeyTensors
from fa_triton.attention.operands import RowOperand, per_key_operand
from fa_triton.incremental_attention.views import antiquant_table, bias_view, mask_view
from fa_triton.layout import LAYOUTS, strides
from fa_triton.validation import check_has_memory

if TYPE_CHECKING:
    from fa_triton.attention.rows import RowUnits
    from fa_triton.incremental_attention.spans import KeySpans
    from fa_triton.incremental_problem import IncreOptions, IncreProblem

# Logits of hidden keys. The kernels' running maximum starts at -0.5e30: a row that has nothing
# above that is empty, one that has nothing but the second value is the mean of its values.
HIDDEN = {"zero": -1.0e30, "mean": -0.4e30}

# keys and values, one tensor per sequence of a list, else one
Caches: TypeAlias = "tuple[list[torch.Tensor], list[torch.Tensor]]"


def key_tensors(caches: Caches, block_table: torch.Tensor | None) -> KeyTensors:
    """Views of keys and values; of a list the tensors from which the others are told by offsets."""
    keys, values = caches
    base = _base_of(keys)
    return KeyTensors(keys[base], values[base], block_table)


def cache_tensors(
    caches: Caches,
    options: IncreOptions,
    problem: IncreProblem,
    units: RowUnits,
    spans: KeySpans,
) -> CacheTensors:
    """What keys and values have beside themselves."""
    bias, mask = options.get("pse_shift"), options.get("atten_mask")
    scale, offset = scales_and_offsets(options, problem)
    return CacheTensors(
        places=_places(caches, problem, spans.first_columns),
        first_columns=spans.first_columns,
        bias=_rows(bias_view(bias, problem), problem, units)
        if problem.has_bias and bias is not None
        else None,
        key_mask=_rows(mask_view(mask, problem), problem, units)
        if problem.mask_form is not None and mask is not None
        else None,
        hidden_logit=HIDDEN[problem.masked_row],
        scale=scale,
        offset=offset,
    )


def _rows(view: torch.Tensor, problem: IncreProblem, units: RowUnits) -> RowOperand:
    return per_key_operand(view, problem.attn, units)


def scales_and_offsets(
    options: IncreOptions, problem: IncreProblem
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Tables of an int8 cache; those per token are views, copied where their strides differ."""
    scale = options.get("antiquant_scale")
    offset = options.get("antiquant_offset") if problem.has_antiquant_offset else None
    if problem.quant is None or scale is None:
        return None, None
    check_has_memory("antiquant_scale", scale)
    if offset is not None:
        check_has_memory("antiquant_offset", offset)
    scales = antiquant_table(scale, problem)
    offsets = antiquant_table(offset, problem) if offset is not None else None
    if scales.ndim == 3:
        return scales.contiguous(), None if offsets is None else offsets.contiguous()
    heads = problem.attn.num_heads_kv
    if offsets is None:
        return scales.expand(-1, -1, heads, -1), None
    if scales.stride() != offsets.stride():
        # the kernels step through both alike
        scales, offsets = scales.contiguous(), offsets.contiguous()
    return scales.expand(-1, -1, heads, -1), offsets.expand(-1, -1, heads, -1)


def _places(
    caches: Caches, problem: IncreProblem, first_columns: torch.Tensor | None
) -> torch.Tensor | None:
    """Where the keys of each sequence lie, as ``CacheTensors.places`` says.

    A kernel gets one pointer to k: tensors of a list are told by how far they lie from the largest.
    """
    layout = problem.attn.layout_kv
    if problem.is_list:
        head = LAYOUTS[layout].head
        columns = [
            column
            for name, cache in zip(("key", "value"), caches, strict=True)
            for column in (_distances(name, cache), [one.stride(head) for one in cache])
        ]
        k, heads_k, v, heads_v = columns
        places = torch.tensor([k, v, heads_k, heads_v], dtype=torch.int64).t().contiguous()
        return places.to(caches[0][0].device)
    if first_columns is None:
        return None
    by = [strides(cache[0], layout) for cache in caches]
    start, step = _sequence_starts(
        problem.attn.batch_size,
        (by[0].outer, by[1].outer),
        (by[0].head, by[1].head),
        (by[0].token, by[1].token),
        first_columns.device,
    )
    return start + first_columns[:, None] * step


@functools.lru_cache(maxsize=64)
def _sequence_starts(
    batch_size: int,
    outer: tuple[int, int],
    heads: tuple[int, int],
    tokens: tuple[int, int],
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of column 0 ``[B, 4]``, and what a column adds to them ``[4]``."""
    rows = [[b * outer[0], b * outer[1], *heads] for b in range(batch_size)]
    with torch.inference_mode(False):
        start = torch.tensor(rows, dtype=torch.int64)
        return start.to(device), torch.tensor([*tokens, 0, 0]).to(device)


def _base_of(tensors: Sequence[torch.Tensor]) -> int:
    """Position of the largest tensor, whose stride from token to token is that of all."""
    if len(tensors) == 1:
        return 0
    return max(range(len(tensors)), key=lambda i: tensors[i].numel())


def _distances(name: str, tensors: Sequence[torch.Tensor]) -> list[int]:
    """Elements from the largest tensor to each; an empty one may lie anywhere."""
    pointers = [tensor.data_ptr() for tensor in tensors]
    for b, pointer in enumerate(pointers):
        if pointer == 0 and tensors[b].numel():
            check_has_memory(f"{name}[{b}]", tensors[b])
    first, size = pointers[_base_of(tensors)], tensors[0].element_size()
    return [(pointer - first) // size for pointer in pointers]
