"""Which tiles a call runs with: the config of its problem, cut down to the blocks of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from fa_triton.targets import target

if TYPE_CHECKING:
    from fa_triton.device import DeviceInfo
    from fa_triton.planner.table import Header
    from fa_triton.problem import BatchProblem
    from fa_triton.tile_config import DtypeClass, MaskClass, TileConfig


def tile_device(info: DeviceInfo) -> str:
    """Folder of a device in ``autotune_configs``."""
    return target(info.target).family if info.kind == "npu" else info.kind


def dtype_class(dtype: torch.dtype) -> DtypeClass:
    """Class of an input dtype."""
    return "fp32" if dtype == torch.float32 else "16bit"


def mask_class(problem: BatchProblem) -> MaskClass:
    """Class of a mask: ``window`` where a left bound hides keys."""
    if problem.has_left_window:
        return "window"
    return "causal" if problem.has_right_window else "none"


def kv_step(page_size: int, block_kv: int) -> int:
    """Keys per tile on pages: the largest multiple of 16 that divides them, ``block_kv`` at most.

    A tile never crosses a page, so that one entry of the block table serves it.
    """
    sixteens = page_size // 16
    limit = max(block_kv // 16, 1)
    return 16 * max(n for n in range(1, min(sixteens, limit) + 1) if sixteens % n == 0)


def fit_to_plan(tile: TileConfig, header: Header) -> TileConfig:
    """Cut tiles down so that plan blocks are multiples of them.

    Raises:
        ValueError: The block sizes of the plan are no multiples of a power of two of at least 16
            keys or of any number of rows.
    """
    block_q = _largest_divisor(header.block_q, tile.block_q)
    block_kv = _largest_divisor(header.block_kv, tile.block_kv)
    return msgspec.structs.replace(tile, block_q=block_q, block_kv=block_kv)


def _largest_divisor(block: int, tile: int) -> int:
    """The largest power of two that divides ``block`` and is at most ``tile``."""
    return min(tile, block & -block)
