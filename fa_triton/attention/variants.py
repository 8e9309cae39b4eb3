"""Compile-time arguments of the attention kernels, and the key that names a compiled variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from fa_triton.attention.rows import RowUnits
    from fa_triton.planner.table import Header
    from fa_triton.problem import AttnProblem
    from fa_triton.tile_config import TileConfig

_DTYPE_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def forward_constants(
    problem: AttnProblem, header: Header, units: RowUnits, tile: TileConfig
) -> dict[str, int | bool]:
    """Compile-time arguments of ``attn_forward``."""
    win_left, win_right = problem.window
    # the one query position of a decode row never sees past its last key
    has_right = win_right >= 0 and header.longest_q > 1
    return {
        "GROUP": units.kernel_group,
        "D": problem.head_dim,
        "BLOCK_Q": tile.block_q,
        "BLOCK_KV": tile.block_kv,
        "HEAD_MAJOR": units.is_head_major,
        "HAS_RIGHT": has_right,
        "HAS_LEFT": win_left >= 0,
        # a causal bound hides the keys behind the last one as well
        "HAS_LIMIT": not has_right or win_right > 0,
        "HAS_CUT_FLAGS": not header.is_section_stream_k,
        "PEEL_INTERIOR": tile.peel_interior,
    }


def combine_constants(
    head_dim: int, is_section_stream_k: bool, units: RowUnits, tile: TileConfig
) -> dict[str, int | bool]:
    """Compile-time arguments of ``attn_combine``."""
    return {
        "GROUP": units.kernel_group,
        "D": head_dim,
        "BLOCK_R": tile.combine_rows,
        "BLOCK_S": tile.combine_slots,
        "BLOCK_D": head_dim if is_section_stream_k else head_dim // 2,
        "HEAD_MAJOR": units.is_head_major,
        "HAS_TASK_LIST": not is_section_stream_k,
    }


def variant_key(kernel: str, dtype: torch.dtype, constants: Mapping[str, int | bool]) -> str:
    """Name a variant: kernel, dtype, numbers by name, then the questions answered yes."""
    name = str(dtype).removeprefix("torch.")
    numbers = [f"{k.lower()}{v}" for k, v in constants.items() if not isinstance(v, bool)]
    answers = [k.lower() for k, v in constants.items() if v is True]
    return "-".join([kernel, _DTYPE_NAMES[name], *numbers, *answers])
