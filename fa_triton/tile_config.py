"""Tile sizes of ``flash_attn``: from a file per device, else by a rule.

``autotune_configs/<device>/flash_attn.json`` lists entries; the first whose conditions hold counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from fa_triton.config_files import entries

OP = "flash_attn"

MaskClass = Literal["none", "causal", "window"]
DtypeClass = Literal["16bit", "fp32"]


@dataclass(frozen=True)
class TileKey:
    """What a choice of tiles depends on.

    Attributes:
        device: ``A2``, ``A3``, ``A5``, ``cuda`` or ``cpu``.
        head_dim: Columns of a tile of q and k: the head dims, padded to a power of two.
        dtype: Class of the input dtype.
        mask: Class of the mask.
        rows: Rows of the longest head unit.
        logit_steps: Steps between product and mask, which take room: soft cap, distance bias.
    """

    device: str
    head_dim: int
    dtype: DtypeClass
    mask: MaskClass
    rows: int
    logit_steps: int = 0


class TileConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tiles of the forward and of the combine kernel; every size is a power of two.

    Attributes:
        block_q: Rows of a tile.
        block_kv: Keys of a tile.
        peel_interior: Whether tiles that hide nothing run in a loop of their own without masks.
        combine_rows: Rows that the combine kernel merges at once.
        combine_slots: Slots that it merges at once.
        int8_terms: Whether a cache of eight bits meets queries and probabilities in two terms of
            eight bits, instead of being cast to their dtype.
    """

    block_q: int
    block_kv: int
    peel_interior: bool = False
    combine_rows: int = 8
    combine_slots: int = 4
    int8_terms: bool = False


class TileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a config file: conditions, tiles, and how they were found.

    A condition that is None holds for every problem.
    """

    head_dim: int
    dtype: DtypeClass
    masks: tuple[MaskClass, ...]
    config: TileConfig
    found: str
    rows_up_to: int | None = None
    logit_steps_up_to: int | None = None

    def matches(self, key: TileKey) -> bool:
        """Whether the entry is for this problem."""
        return (
            self.head_dim == key.head_dim
            and self.dtype == key.dtype
            and key.mask in self.masks
            and (self.rows_up_to is None or key.rows <= self.rows_up_to)
            and (self.logit_steps_up_to is None or key.logit_steps <= self.logit_steps_up_to)
        )


def choose_tile(key: TileKey) -> TileConfig:
    """Take the tiles of the first matching entry of the user's file, the shipped file, or a rule.

    Raises:
        ValueError: A config file that does not decode, named with the reason.
    """
    for entry in entries(OP, key.device, TileEntry):
        if entry.matches(key):
            return entry.config
    return _rule(key)


def _rule(key: TileKey) -> TileConfig:
    """Tiles that fit every Ascend device for dims that no file lists."""
    block_q = 16 if key.rows <= 16 else 64 if key.head_dim <= 128 else 32
    block_kv = 128 if key.head_dim <= 128 else 64
    return TileConfig(block_q, block_kv if key.dtype == "16bit" else 64)
