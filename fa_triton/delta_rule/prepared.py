"""What a call of the chunked forward decides, once for all calls that are alike."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa_triton.attention.tiles import tile_device
from fa_triton.delta_rule.tiles import ChunkTileKey, choose_chunk_tiles
from fa_triton.delta_rule.variants import ChunkForms, chunk_forms
from fa_triton.device import device_info
from fa_triton.padding import padded

if TYPE_CHECKING:
    from fa_triton.delta_rule.problem import ChunkKdaProblem
    from fa_triton.delta_rule.tiles import ChunkTiles
    from fa_triton.validation.delta_rule import DeltaRuleSizes


@dataclass(frozen=True)
class PreparedChunks:
    """A problem on its way to the kernels.

    Attributes:
        problem: The validated call.
        forms: Forms of its kernels.
    """

    problem: ChunkKdaProblem
    forms: ChunkForms


@functools.lru_cache(maxsize=512)
def prepare_chunks(problem: ChunkKdaProblem) -> PreparedChunks:
    """Choose tiles and kernel forms."""
    tiles = tiles_for(problem.sizes, problem.chunk_size)
    return PreparedChunks(problem, chunk_forms(problem, tiles))


def tiles_for(sizes: DeltaRuleSizes, chunk_size: int) -> ChunkTiles:
    """Tiles of a problem on its device."""
    key = ChunkTileKey(
        device=tile_device(device_info(sizes.device)),
        key_dim=padded(sizes.key_dim),
        value_dim=padded(sizes.value_dim),
        chunk_size=chunk_size,
    )
    return choose_chunk_tiles(key)
