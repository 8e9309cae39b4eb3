"""The contract of ``incre_flash_attention``: arguments in, frozen problem out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fa_triton.incremental_problem import IncreProblem, InputLayout, MaskedRow
from fa_triton.layout import is_paged
from fa_triton.problem import (
    CAUSAL,
    NO_MASK,
    NO_SCALES,
    PER_CHANNEL,
    PER_TOKEN,
    WINDOW,
    AttnProblem,
    CacheForm,
    Side,
)
from fa_triton.validation.antiquant import CacheAxes, check_antiquant
from fa_triton.validation.attention import check_metadata_tensor, check_softcap
from fa_triton.validation.batch import describe_batch
from fa_triton.validation.incremental_combinations import (
    check_block_size,
    check_block_table,
    check_inner_precise,
    check_left_padding_fits,
    check_pages_have_lengths,
    check_prefix_fits,
    refuse_int8_query_arguments,
)
from fa_triton.validation.incremental_lengths import (
    ActualLengths,
    check_actual_lengths,
    check_left_padding,
)
from fa_triton.validation.incremental_masks import Rows, check_atten_mask, check_pse_shift
from fa_triton.validation.incremental_operands import (
    DENSE_LAYOUT,
    CacheSizes,
    QuerySizes,
    check_cache,
    check_cache_form,
    check_input_layout,
    check_kv_heads,
    check_prefix,
    check_query,
    check_query_form,
)
from fa_triton.validation.masks import Mask, as_width
from fa_triton.validation.optional_tensors import as_given
from fa_triton.validation.output_quant import check_output_quant
from fa_triton.validation.scalars import as_flag, as_float, as_int, one_of
from fa_triton.validation.tensors import check_small_tensor, refuse_gradient

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.incremental_problem import Cache, IncreOptions

_SCALES_OF = {
    None: NO_SCALES,
    "per_tensor": PER_CHANNEL,
    "per_channel": PER_CHANNEL,
    "per_token": PER_TOKEN,
    "per_token_head": PER_TOKEN,
}
MASKED_ROWS: tuple[MaskedRow, ...] = ("zero", "mean")


def validate_incre_flash_attention(
    query: torch.Tensor, key: Cache, value: Cache, **options: Unpack[IncreOptions]
) -> IncreProblem:
    """Check every argument of ``incre_flash_attention``, described there, reading no device.

    Returns:
        The problem: sizes and options, no tensors.

    Raises:
        ValueError: A shape or value out of its range, arguments that exclude each other.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient, an int8 query, an int4 cache, a
            window over a shared prefix.
    """
    layout = check_input_layout(options.get("input_layout", "BSH"))
    sizes = check_query(query, layout, options.get("num_heads", 1))
    device, dtype = query.device, query.dtype
    num_kv_heads = check_kv_heads(options.get("num_key_value_heads", 0), sizes.num_heads)
    refuse_int8_query_arguments(
        dequant_scale1=options.get("dequant_scale1"),
        quant_scale1=options.get("quant_scale1"),
        dequant_scale2=options.get("dequant_scale2"),
    )
    check_inner_precise(options.get("inner_precise", 1))
    table = check_block_table(options.get("block_table"), sizes.batch_size, device)
    paged = table is not None
    cache = check_cache(key, value, query, sizes, layout, num_kv_heads, is_paged=paged)
    check_block_size(options.get("block_size", 0), cache, is_paged=paged)
    seqlen = cache.tokens if table is None else cache.tokens * table.shape[1]
    rooms = cache.list_lengths or (seqlen,) * sizes.batch_size
    lengths = check_actual_lengths(options.get("actual_seq_lengths"), rooms, device)
    check_pages_have_lengths(is_paged=paged, has_lengths=lengths.are_given)
    left_padded = check_left_padding(options.get("kv_padding_size"), device)
    if left_padded:
        check_left_padding_fits(
            is_paged=paged,
            is_list=cache.list_lengths is not None,
            has_lengths=lengths.are_given,
        )
    prefix = check_prefix(
        options.get("key_shared_prefix"),
        options.get("value_shared_prefix"),
        query,
        cache,
        sizes.head_dim,
    )
    # Columns of the keys that may be read: absolute ones where keys end before the padding.
    longest = seqlen if left_padded or lengths.host is None else max(lengths.host)
    rows = Rows(sizes.batch_size, sizes.num_heads, sizes.tokens)
    mask_form, mask_columns = check_atten_mask(
        options.get("atten_mask"), rows, prefix + longest, device
    )
    columns = prefix + (longest if paged else seqlen)
    bias = check_pse_shift(options.get("pse_shift"), rows, columns, dtype, device)
    quant, has_antiquant_offset = check_antiquant(
        options.get("antiquant_scale"),
        options.get("antiquant_offset"),
        options.get("antiquant_mode"),
        axes=CacheAxes(
            num_heads=num_kv_heads,
            head_dim=sizes.head_dim,
            outer=cache.num_pages if paged else sizes.batch_size,
            tokens=cache.tokens,
            is_paged=paged,
        ),
        is_int8=cache.is_int8,
        dtype=dtype,
        device=device,
    )
    output_quant, has_quant_offset = check_output_quant(
        options.get("quant_scale2"),
        options.get("quant_offset2"),
        num_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
        dtype=dtype,
        device=device,
    )
    numbers = _check_numbers(query, sizes.num_heads, options)
    if prefix:
        check_prefix_fits(numbers.masked_row, numbers.win_left, quant)
    sees_all_queries = sizes.tokens == 1 or mask_form == "per_query"
    attn = _describe(
        query,
        sizes,
        cache,
        seqlen=seqlen,
        lengths=lengths,
        mask=_mask(numbers.win_left, is_causal=not sees_all_queries),
        query_layout=DENSE_LAYOUT[layout],
        numbers=numbers,
    )
    form = CacheForm(
        scales=_SCALES_OF[quant],
        has_offsets=has_antiquant_offset,
        has_places=cache.list_lengths is not None or left_padded,
        has_first_columns=left_padded,
        has_bias=bias.batch > 0,
        has_mask=mask_form is not None,
        has_mask_rows=mask_form in ("per_head", "per_query"),
    )
    return IncreProblem(
        attn=replace(attn, cache=form),
        input_layout=layout,
        is_list=cache.list_lengths is not None,
        list_lengths=cache.list_lengths,
        host_lengths=lengths.host,
        has_device_lengths=lengths.is_tensor,
        broadcasts_lengths=lengths.is_broadcast,
        has_left_padding=left_padded,
        has_bias=bias.batch > 0,
        bias_batch=bias.batch,
        bias_heads=bias.heads,
        bias_rows=bias.rows,
        mask_form=mask_form,
        mask_columns=mask_columns,
        quant=quant,
        has_antiquant_offset=has_antiquant_offset,
        output_quant=output_quant,
        has_quant_offset2=has_quant_offset,
        masked_row=numbers.masked_row,
        prefix_length=prefix,
    )


def check_incremental_form(
    query: torch.Tensor, key: Cache, value: Cache, **options: Unpack[IncreOptions]
) -> InputLayout:
    """Check what does not depend on sizes, while a graph is traced; return ``input_layout``."""
    layout = check_input_layout(options.get("input_layout", "BSH"))
    check_query_form(query, layout)
    for name, cache in (("key", key), ("value", value)):
        check_cache_form(name, cache, query)
    check_inner_precise(options.get("inner_precise", 1))
    one_of("masked_row", options.get("masked_row", "zero"), MASKED_ROWS)
    as_int("win_left", options.get("win_left", -1), minimum=-1)
    return layout


@dataclass(frozen=True)
class _Numbers:
    """Arguments whose meaning depends on no other tensor than the query."""

    scale: float
    softcap: float
    win_left: int
    masked_row: MaskedRow
    has_sinks: bool
    return_softmax_lse: bool
    lse_includes_sink: bool


def _check_numbers(query: torch.Tensor, num_heads: int, options: IncreOptions) -> _Numbers:
    scale = as_float("scale_value", options.get("scale_value", 1.0))
    sinks = as_given("sinks", options.get("sinks"))
    if sinks is not None:
        check_small_tensor(
            "sinks",
            sinks,
            dtype=torch.float32,
            shape=(num_heads,),
            device=query.device,
            meaning=f"({num_heads},), one per query head",
        )
        refuse_gradient("sinks", sinks)
    metadata = as_given("metadata", options.get("metadata"))
    if metadata is not None:
        check_metadata_tensor(metadata, query.device)
    win_left = as_int("win_left", options.get("win_left", -1), minimum=-1)
    masked_row = one_of("masked_row", options.get("masked_row", "zero"), MASKED_ROWS)
    return _Numbers(
        scale=scale,
        softcap=check_softcap(options.get("softcap", 0.0), scale, "scale_value"),
        win_left=as_width(win_left),
        masked_row=masked_row,
        has_sinks=sinks is not None,
        return_softmax_lse=as_flag("return_softmax_lse", options.get("return_softmax_lse", False)),
        lse_includes_sink=as_flag("lse_includes_sink", options.get("lse_includes_sink", False)),
    )


def _mask(win_left: int, *, is_causal: bool) -> Mask:
    """The mask by position; a mask tensor comes on top."""
    if win_left >= 0:
        return Mask(WINDOW, win_left, 0 if is_causal else -1)
    return Mask(CAUSAL if is_causal else NO_MASK, -1, -1)


def _describe(
    query: torch.Tensor,
    sizes: QuerySizes,
    cache: CacheSizes,
    *,
    seqlen: int,
    lengths: ActualLengths,
    mask: Mask,
    query_layout: str,
    numbers: _Numbers,
) -> AttnProblem:
    """What planner, rows and tiles see of the call."""
    q_side = Side(
        name="q",
        layout=query_layout,
        seqlen=sizes.tokens,
        total=sizes.batch_size * sizes.tokens,
        max_seqlen=-1,
        has_cu_seqlens=False,
        has_seqused=False,
    )
    kv_side = Side(
        name="kv",
        layout=cache.layout,
        seqlen=seqlen,
        total=sizes.batch_size * seqlen,
        max_seqlen=-1,
        has_cu_seqlens=False,
        has_seqused=lengths.are_given or cache.list_lengths is not None,
    )
    batch = describe_batch(
        q_side,
        kv_side,
        batch_size=sizes.batch_size,
        num_heads_q=sizes.num_heads,
        num_heads_kv=cache.num_heads,
        head_dim=sizes.head_dim,
        layout_out=query_layout,
        page_size=cache.tokens if is_paged(cache.layout) else 0,
        mask=mask,
        batch_invariant=False,
    )
    return AttnProblem(
        **vars(batch),
        head_dim_v=sizes.head_dim,
        dtype=query.dtype,
        device=query.device,
        softmax_scale=numbers.scale,
        has_sinks=numbers.has_sinks,
        has_alibi_slopes=False,
        softcap=numbers.softcap,
        return_softmax_lse=numbers.return_softmax_lse,
        lse_includes_sink=numbers.lse_includes_sink,
    )
