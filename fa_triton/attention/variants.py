"""Compile-time arguments of the attention kernels, and the form of them that a call runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fa_triton.attention.tiles import has_exact_cap, padded_dims
from fa_triton.kernel_form import KernelForm, dtype_name
from fa_triton.problem import PLAIN_CACHE

if TYPE_CHECKING:
    from fa_triton.attention.rows import RowUnits
    from fa_triton.planner.table import Header
    from fa_triton.problem import AttnProblem, CacheForm
    from fa_triton.tile_config import TileConfig

# Tensors that a call may leave out, in the order of the kernels' arguments.
FORWARD_TENSORS = (
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "seqused_q",
    "seqused_kv",
    "block_table",
    "sinks",
    "alibi_slopes",
    "softmax_lse",
)
CACHE_TENSORS = (
    "kv_places",
    "first_columns",
    "bias",
    "key_mask",
    "k_scale",
    "k_offset",
    "v_scale",
    "v_offset",
)
COMBINE_TENSORS = ("cu_seqlens_q", "seqused_q", "sinks", "softmax_lse")


def forward_constants(
    problem: AttnProblem, header: Header, units: RowUnits, tile: TileConfig, kv_step: int
) -> dict[str, int | bool]:
    """Compile-time arguments of ``attn_forward``."""
    win_left, win_right = problem.window
    dim, dim_v = padded_dims(problem.head_dim, problem.head_dim_v)
    # the one query position of a decode row never sees past its last key
    has_right = win_right >= 0 and header.longest_q > 1
    return {
        "GROUP": units.kernel_group,
        "D": dim,
        "DV": dim_v,
        "BLOCK_Q": tile.block_q,
        "BLOCK_KV": tile.block_kv,
        "KV_STEP": kv_step,
        "HEAD_MAJOR": units.is_head_major,
        "HAS_RIGHT": has_right,
        "HAS_LEFT": win_left >= 0,
        # a causal bound hides the keys behind the last one as well
        "HAS_LIMIT": not has_right or win_right > 0 or kv_step < tile.block_kv,
        "HAS_SOFTCAP": problem.softcap > 0,
        "HAS_EXACT_CAP": has_exact_cap(problem),
        "HAS_PADDED_DIM": (problem.head_dim, problem.head_dim_v) != (dim, dim_v),
        "HAS_CUT_FLAGS": not header.is_section_stream_k,
        "IS_NZ": problem.layout_kv == "PA_NZ",
        "LSE_HAS_SINK": problem.lse_includes_sink,
        "PEEL_INTERIOR": tile.peel_interior,
    }


def combine_constants(
    columns: int,
    has_task_list: bool,
    units: RowUnits,
    tile: TileConfig,
    *,
    is_padded: bool = False,
    lse_has_sink: bool = False,
) -> dict[str, int | bool]:
    """Compile-time arguments of ``attn_combine`` for tiles of ``columns`` columns."""
    return {
        "GROUP": units.kernel_group,
        "DV": columns,
        "BLOCK_R": tile.combine_rows,
        "BLOCK_S": tile.combine_slots,
        # a task of the list covers whole rows or halves of rows
        "BLOCK_D": columns // 2 if has_task_list else columns,
        "HEAD_MAJOR": units.is_head_major,
        "HAS_PADDED_DIM": is_padded,
        "HAS_TASK_LIST": has_task_list,
        "LSE_HAS_SINK": lse_has_sink,
    }


def forward_form(
    problem: AttnProblem, header: Header, units: RowUnits, tile: TileConfig, kv_step: int
) -> KernelForm:
    """Form of ``attn_forward`` that a call runs."""
    constants = forward_constants(problem, header, units, tile, kv_step)
    form = _form("attn_forward", problem, constants, FORWARD_TENSORS)
    return form if problem.cache == PLAIN_CACHE else with_cache(form, problem.cache, tile)


def with_cache(form: KernelForm, cache: CacheForm, tile: TileConfig) -> KernelForm:
    """Form of ``attn_forward`` over a cache that has more than keys and values."""
    constants = {
        "KV_SCALES": cache.scales,
        "HAS_MASK_ROWS": cache.has_mask_rows,
        "HAS_INT8_TERMS": cache.is_integer and tile.int8_terms,
    }
    return replace(
        form,
        constants=(*form.constants, *constants.items()),
        tensors=form.tensors + cache_tensors(cache),
    )


def cache_tensors(cache: CacheForm) -> tuple[str, ...]:
    """Tensors of a cache that ``attn_forward`` gets, by name."""
    given = {
        "kv_places": cache.has_places,
        "first_columns": cache.has_first_columns,
        "bias": cache.has_bias,
        "key_mask": cache.has_mask,
        "k_scale": cache.is_integer,
        "k_offset": cache.has_offsets,
        "v_scale": cache.is_integer,
        "v_offset": cache.has_offsets,
    }
    return tuple(name for name in CACHE_TENSORS if given[name])


def combine_form(
    problem: AttnProblem, header: Header, units: RowUnits, tile: TileConfig
) -> KernelForm:
    """Form of ``attn_combine`` that a call runs."""
    columns = padded_dims(problem.head_dim, problem.head_dim_v)[1]
    constants = combine_constants(
        columns,
        not header.is_section_stream_k,
        units,
        tile,
        is_padded=problem.head_dim_v < columns,
        lse_has_sink=problem.lse_includes_sink,
    )
    return _form("attn_combine", problem, constants, COMBINE_TENSORS)


def _form(
    kernel: str,
    problem: AttnProblem,
    constants: Mapping[str, int | bool],
    optional: tuple[str, ...],
) -> KernelForm:
    given = {
        "cu_seqlens_q": problem.has_cu_seqlens_q,
        "cu_seqlens_kv": problem.has_cu_seqlens_kv,
        "seqused_q": problem.has_seqused_q,
        "seqused_kv": problem.has_seqused_kv,
        "block_table": problem.is_paged,
        "sinks": problem.has_sinks,
        "alibi_slopes": problem.has_alibi_slopes,
        "softmax_lse": problem.return_softmax_lse,
    }
    present = tuple(name for name in optional if given[name])
    return KernelForm(kernel, dtype_name(problem.dtype), tuple(constants.items()), present)
