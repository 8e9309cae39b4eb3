"""Which tiles a call runs with: the config of its problem, cut down to the blocks of its plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import torch

from fa_triton.padding import padded
from fa_triton.problem import AttnProblem
from fa_triton.targets import target

if TYPE_CHECKING:
    from fa_triton.device import DeviceInfo
    from fa_triton.planner.table import Header
    from fa_triton.problem import BatchProblem
    from fa_triton.tile_config import DtypeClass, MaskClass, TileConfig

# Columns that a matrix product needs at least.
MIN_DIM = 16
# Above it the short form of tanh is not exact enough for 16-bit inputs either: it errs by 1e-7 of
# the cap.
LARGEST_SHORT_CAP = 256.0
# Of a tile that is gathered from fractals on vector cores: keys, bytes of K or V, and elements of
# the accumulator.
MAX_FRACTAL_KEYS = 128
MAX_FRACTAL_BYTES = 32 * 1024
MAX_FRACTAL_SUMS = 8 * 1024
# Of a tile of stored integers: keys, elements of K or V, and rows.
MAX_INTEGER_KEYS = 256
MAX_INTEGER_SUMS = 32 * 1024
MAX_INTEGER_ROWS = 16


def tile_device(info: DeviceInfo) -> str:
    """Folder of a device in ``autotune_configs``."""
    return target(info.target).family if info.kind == "npu" else info.kind


def loads_fractals(device: str) -> bool:
    """Whether the attention kernels of a device take pages of fractals (PA_NZ) as they lie.

    The compiler for A2 and A3 puts each key of such a tile into a block of its own in L1, where the
    product with V asks for blocks of 16 keys; on A5 vector cores lay the tile out.
    """
    return device not in ("A2", "A3")


def dtype_class(dtype: torch.dtype) -> DtypeClass:
    """Class of an input dtype."""
    return "fp32" if dtype == torch.float32 else "16bit"


def mask_class(problem: BatchProblem) -> MaskClass:
    """Class of a mask: ``window`` where a left bound hides keys."""
    if problem.has_left_window:
        return "window"
    return "causal" if problem.has_right_window else "none"


def tile_dim(problem: BatchProblem) -> int:
    """Head dim that the tiles of a problem are chosen for; a plan does not know that of v."""
    head_dim_v = problem.head_dim_v if isinstance(problem, AttnProblem) else problem.head_dim
    return padded_dims(problem.head_dim, head_dim_v)[0]


def logit_steps(problem: BatchProblem) -> int:
    """Steps between q·k and mask: soft cap (an exact one is two), biases, and a mask of bytes.

    A plan does not know them.
    """
    if not isinstance(problem, AttnProblem):
        return 0
    exact = has_exact_cap(problem) and problem.dtype != torch.float32
    cache = problem.cache
    per_key = int(cache.has_bias) + int(cache.has_mask)
    return int(problem.softcap > 0) + int(exact) + int(problem.has_alibi_slopes) + per_key


def has_exact_cap(problem: AttnProblem) -> bool:
    """Whether the soft cap must be exact around 0: for fp32 inputs, and where it is large."""
    if not problem.softcap:
        return False
    return problem.dtype == torch.float32 or problem.softcap > LARGEST_SHORT_CAP


def padded_dims(head_dim: int, head_dim_v: int) -> tuple[int, int]:
    """Columns (D, DV) of the tiles of q and k, and of v: powers of two that hold the head dims.

    DV is D or half of it, so that few forms serve all pairs.
    """
    dim = max(padded(head_dim, MIN_DIM), padded(head_dim_v, MIN_DIM))
    return dim, max(padded(head_dim_v, MIN_DIM), dim // 2, MIN_DIM)


def kv_step(page_size: int, block_kv: int) -> int:
    """Keys per tile on pages: the largest multiple of 16 that divides them, ``block_kv`` at most.

    A tile never crosses a page, so that one entry of the block table serves it.
    """
    sixteens = page_size // 16
    limit = max(block_kv // 16, 1)
    return 16 * max(n for n in range(1, min(sixteens, limit) + 1) if sixteens % n == 0)


def fit_to_plan(tile: TileConfig, header: Header, device: str) -> TileConfig:
    """Cut tiles down so that plan blocks are multiples of them."""
    block_kv = _largest_divisor(header.block_kv, tile.block_kv)
    block_q = _not_square(_largest_divisor(header.block_q, tile.block_q), block_kv, device)
    return msgspec.structs.replace(tile, block_q=block_q, block_kv=block_kv)


def fit_to_pages(
    tile: TileConfig, header: Header, device: str, page_size: int
) -> tuple[TileConfig, int]:
    """Cut tiles down so that none crosses a page or a block of the plan.

    Returns:
        The tile, and the keys that it advances by: fewer than ``block_kv`` where these are no power
        of two.
    """
    step = kv_step(math.gcd(page_size, header.block_kv), tile.block_kv)
    block_q = _largest_divisor(header.block_q, tile.block_q)
    return tile_on_pages(msgspec.structs.replace(tile, block_q=block_q), step, device), step


def fractal_tile(tile: TileConfig, dim: int, dtype: DtypeClass) -> TileConfig:
    """Cut a tile down to what fits where K and V come in fractals of ``dim`` columns in all."""
    key_bytes = dim * (4 if dtype == "fp32" else 2)
    return msgspec.structs.replace(
        tile,
        block_q=min(tile.block_q, MAX_FRACTAL_SUMS // dim),
        block_kv=min(tile.block_kv, MAX_FRACTAL_KEYS, MAX_FRACTAL_BYTES // key_bytes),
    )


def integer_tile(tile: TileConfig, dim: int, steps: int) -> TileConfig:
    """Cut a tile down to what fits where keys and values are stored integers.

    Args:
        tile: Of keys and values in the dtype of the queries.
        dim: Columns of a tile.
        steps: Steps between q·k and mask, which take room.
    """
    block_kv = min(tile.block_kv, MAX_INTEGER_KEYS, MAX_INTEGER_SUMS // dim)
    if steps > 1:
        block_kv = max(block_kv // 2, MIN_DIM)
    return msgspec.structs.replace(
        tile, block_q=min(tile.block_q, MAX_INTEGER_ROWS), block_kv=block_kv
    )


def tile_on_pages(tile: TileConfig, step: int, device: str) -> TileConfig:
    """Tile that advances by ``step`` keys."""
    block_kv = padded(step, MIN_DIM)
    block_q = _not_square(tile.block_q, block_kv, device)
    peel = tile.peel_interior and step == block_kv
    return msgspec.structs.replace(tile, block_q=block_q, block_kv=block_kv, peel_interior=peel)


def _not_square(block_q: int, block_kv: int, device: str) -> int:
    """Rows of a tile, halved where 64 rows and 64 keys meet on A2 or A3.

    That tile overflows the unified buffer, where 32 rows and 128 rows fit: the compiler takes one
    axis for the other.
    """
    return block_q // 2 if device in ("A2", "A3") and block_q == block_kv == 64 else block_q


def _largest_divisor(block: int, tile: int) -> int:
    """The largest power of two that divides ``block`` and is at most ``tile``."""
    return min(tile, block & -block)
