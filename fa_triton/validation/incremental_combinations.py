"""Arguments of ``incre_flash_attention`` that exclude or need each other."""

from __future__ import annotations

import torch

from fa_triton.incremental_problem import AntiquantMode
from fa_triton.validation.antiquant import PER_TOKEN
from fa_triton.validation.incremental_operands import CacheSizes
from fa_triton.validation.optional_tensors import as_given
from fa_triton.validation.scalars import as_int
from fa_triton.validation.tensors import check_small_tensor

INT8_QUERY_ARGUMENTS = ("dequant_scale1", "quant_scale1", "dequant_scale2")


def refuse_int8_query_arguments(**given: object) -> None:
    """Refuse the scales that only int8 queries have."""
    for name in INT8_QUERY_ARGUMENTS:
        if as_given(name, given[name]) is not None:
            raise ValueError(
                f"`{name}` must be None (it belongs to int8 queries, which are not supported), got "
                "a tensor; use antiquant_scale for an int8 cache, quant_scale2 for an int8 result"
            )


def check_inner_precise(inner_precise: object) -> None:
    """Both modes are served by fp32 accumulation."""
    mode = as_int("inner_precise", inner_precise)
    if mode not in (0, 1):
        raise ValueError(
            f"`inner_precise` must be 0 (accurate) or 1 (fast), which are the same here, got {mode}"
        )


def check_block_size(block_size: object, cache: CacheSizes, *, is_paged: bool) -> None:
    """The page size is an axis of the cache: the argument may only repeat it."""
    size = as_int("block_size", block_size, minimum=0)
    if size == 0:
        return
    if not is_paged:
        raise ValueError(
            f"`block_size` must be 0 without block_table (it is the page size of a paged cache), "
            f"got {size}"
        )
    if size != cache.tokens:
        raise ValueError(
            f"`block_size` must be {cache.tokens}, the page size of key, or 0, got {size}"
        )


def check_pages_have_lengths(*, is_paged: bool, has_lengths: bool) -> None:
    """Pages say how many keys there is room for, not how many there are."""
    if is_paged and not has_lengths:
        raise ValueError(
            "`actual_seq_lengths` must be given with block_table (pages say how many keys there is "
            "room for, not how many there are), got None; use a list of ints or a tensor"
        )


def check_left_padding_fits(*, is_paged: bool, is_list: bool, has_lengths: bool) -> None:
    """Left padding counts from the end of a sequence axis that all sequences share."""
    why = "keys are counted from the end of the sequence axis"
    if is_paged:
        raise ValueError(
            f"`kv_padding_size` must be None with block_table ({why}, which pages do not have), "
            "got a tensor; leave the padding out of the pages"
        )
    if is_list:
        raise ValueError(
            f"`kv_padding_size` must be None with a list of keys ({why}, which differs from tensor "
            "to tensor), got a tensor; cut the padding off the tensors"
        )
    if not has_lengths:
        raise ValueError(
            f"`actual_seq_lengths` must be given with kv_padding_size ({why}, so their number must "
            "be known), got None; use a list of ints or a tensor"
        )


def check_prefix_fits(masked_row: str, win_left: int, quant: AntiquantMode | None) -> None:
    """What a shared prefix does not go together with."""
    if masked_row == "mean":
        raise ValueError(
            "`masked_row` must be 'zero' with key_shared_prefix (the mean is the result of an "
            "operator that has no prefix), got 'mean'"
        )
    if win_left >= 0:
        raise NotImplementedError(
            f"a window over a shared prefix is not built: `win_left` must be -1 with "
            f"key_shared_prefix, got {win_left}; hide keys by atten_mask, or pass prefix and own "
            "keys as one cache"
        )
    if quant in PER_TOKEN:
        raise ValueError(
            "`antiquant_mode` must be per_tensor or per_channel with key_shared_prefix (its tokens "
            f"have no scales), got {quant!r}"
        )


def check_block_table(
    block_table: object, batch_size: int, device: torch.device
) -> torch.Tensor | None:
    """Check the page ids ``[B, pages]``; None or empty means that there are no pages."""
    table = as_given("block_table", block_table)
    if table is None:
        return None
    return check_small_tensor(
        "block_table",
        table,
        dtype=torch.int32,
        shape=(batch_size, None),
        device=device,
        meaning=f"({batch_size}, pages per sequence)",
        rows_apart=True,
    )
