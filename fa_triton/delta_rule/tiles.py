"""Tile sizes of the chunked forward: from a file per device, else by a rule.

``autotune_configs/<device>/kda.json`` lists entries; the first whose conditions hold counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fa_triton.config_files import entries

OP = "kda"
# Rows of a block of scores. Not free: with a bounded gate the exponents inside a block reach
# 15 * 5 / ln 2 = 108, and the diagonal kernel takes blocks of 16 apart.
SCORE_ROWS = 16


@dataclass(frozen=True)
class ChunkTileKey:
    """What a choice of tiles depends on.

    Attributes:
        device: ``A2``, ``A3``, ``A5``, ``cuda`` or ``cpu``.
        key_dim: K, padded to a power of two.
        value_dim: V, padded to a power of two.
        chunk_size: C.
    """

    device: str
    key_dim: int
    value_dim: int
    chunk_size: int


class ChunkTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns that a kernel takes at once; powers of two, at most the padded K, V or C.

    Attributes:
        gate_k: Columns of the gate.
        norm_k: Columns of a part of the norms.
        score_c: Keys of a tile of scores.
        score_k: Columns of a product of scores.
        diagonal_k: Columns of a product of a diagonal block.
        inverse_r: Rows of a block that is inverted row by row; larger ones are merged.
        wu_k: Columns of w.
        wu_v: Columns of u.
        state_v: Value columns of a part of the state.
        out_v: Columns of the result.
    """

    gate_k: int
    norm_k: int
    score_c: int
    score_k: int
    diagonal_k: int
    inverse_r: int
    wu_k: int
    wu_v: int
    state_v: int
    out_v: int

    def cut_to(self, key: ChunkTileKey) -> ChunkTiles:
        """No tile wider than what there is."""
        limits = {"k": key.key_dim, "v": key.value_dim, "c": key.chunk_size, "r": key.chunk_size}
        sizes = msgspec.structs.asdict(self)
        return ChunkTiles(**{name: min(n, limits[name[-1]]) for name, n in sizes.items()})


class ChunkTileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a config file: conditions, tiles, and how they were found.

    A condition that is None holds for every problem.
    """

    config: ChunkTiles
    found: str
    key_dim_up_to: int | None = None
    value_dim_up_to: int | None = None
    chunk_size_up_to: int | None = None

    def matches(self, key: ChunkTileKey) -> bool:
        """Whether the entry is for this problem."""
        limits = (
            (key.key_dim, self.key_dim_up_to),
            (key.value_dim, self.value_dim_up_to),
            (key.chunk_size, self.chunk_size_up_to),
        )
        return all(limit is None or size <= limit for size, limit in limits)


def choose_chunk_tiles(key: ChunkTileKey) -> ChunkTiles:
    """Take the tiles of the first matching entry of the user's file, the shipped file, or a rule.

    Raises:
        ValueError: A config file that does not decode, named with the reason.
    """
    for entry in entries(OP, key.device, ChunkTileEntry):
        if entry.matches(key):
            return entry.config.cut_to(key)
    return _RULE.cut_to(key)


# Tiles that fit every Ascend device.
_RULE = ChunkTiles(
    gate_k=64,
    norm_k=128,
    score_c=64,
    score_k=64,
    diagonal_k=64,
    inverse_r=32,
    wu_k=64,
    wu_v=64,
    state_v=32,
    out_v=128,
)
