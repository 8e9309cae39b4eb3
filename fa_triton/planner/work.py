"""The work a plan is made for: lengths, heads and mask as host integers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

MASK_NONE = 0
MASK_CAUSAL = 3
MASK_WINDOW = 4
MASK_MODES = (MASK_NONE, MASK_CAUSAL, MASK_WINDOW)
LAYOUTS = ("BSND", "BNSD", "TND")


@dataclass(frozen=True)
class AttnWork:
    """Attention work of one batch, host integers only.

    Args:
        q_lens: Actual query lengths ``[B]``; 0 allowed.
        kv_lens: Actual key lengths ``[B]``; 0 allowed.
        num_heads_q: Query heads Nq.
        num_heads_kv: Key and value heads Nkv; Nq is a multiple of it.
        head_dim: Head dim D of queries and keys.
        mask_mode: 0 none, 3 causal, 4 window; aligned bottom-right.
        win_left: Keys visible left of the diagonal in mode 4, -1 unlimited.
        win_right: Keys visible right of the diagonal in mode 4, -1 unlimited.
        layout_q: ``"BSND"``, ``"BNSD"`` or ``"TND"``.
        layout_out: Likewise, of the output.
        max_seqlen_q: The *argument* of ``flash_attn_metadata``, -1 unknown.
        max_seqlen_kv: Likewise for keys.
        head_dim_v: Head dim of values and output, -1 the same as ``head_dim``.

    Raises:
        ValueError: A length, head count, mask or layout is not meaningful.
    """

    q_lens: np.ndarray
    kv_lens: np.ndarray
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    mask_mode: int = MASK_NONE
    win_left: int = -1
    win_right: int = -1
    layout_q: str = "BSND"
    layout_out: str = "BSND"
    max_seqlen_q: int = -1
    max_seqlen_kv: int = -1
    head_dim_v: int = -1

    def __post_init__(self) -> None:
        q_lens = np.asarray(self.q_lens, dtype=np.int64)
        kv_lens = np.asarray(self.kv_lens, dtype=np.int64)
        object.__setattr__(self, "q_lens", q_lens)
        object.__setattr__(self, "kv_lens", kv_lens)
        if q_lens.ndim != 1 or q_lens.shape != kv_lens.shape or q_lens.size == 0:
            raise ValueError(
                "`q_lens` and `kv_lens` must be non-empty and of one length, "
                f"got shapes {q_lens.shape} and {kv_lens.shape}"
            )
        if q_lens.min() < 0 or kv_lens.min() < 0:
            raise ValueError(
                "`q_lens` and `kv_lens` must not be negative, "
                f"got minima {q_lens.min()} and {kv_lens.min()}"
            )
        if self.num_heads_kv < 1 or self.num_heads_q < 1 or self.num_heads_q % self.num_heads_kv:
            raise ValueError(
                "`num_heads_q` must be a positive multiple of `num_heads_kv`, "
                f"got {self.num_heads_q} and {self.num_heads_kv}"
            )
        if self.head_dim < 1:
            raise ValueError(f"`head_dim` must be positive, got {self.head_dim}")
        if self.mask_mode not in MASK_MODES:
            raise ValueError(f"`mask_mode` must be one of {MASK_MODES}, got {self.mask_mode}")
        if self.win_left < -1 or self.win_right < -1:
            raise ValueError(
                "`win_left` and `win_right` must be at least -1, "
                f"got {self.win_left} and {self.win_right}"
            )
        if self.layout_q not in LAYOUTS or self.layout_out not in LAYOUTS:
            raise ValueError(
                f"`layout_q` and `layout_out` must be one of {LAYOUTS}, "
                f"got {self.layout_q!r} and {self.layout_out!r}"
            )

    @property
    def batch_size(self) -> int:
        """Sequences in the batch."""
        return self.q_lens.size

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.num_heads_q // self.num_heads_kv

    @property
    def columns(self) -> int:
        """Columns of an output row."""
        return self.head_dim if self.head_dim_v < 0 else self.head_dim_v

    @property
    def fingerprint(self) -> int:
        """31-bit identity of the problem a table belongs to; lengths are not part of it."""
        return problem_fingerprint(
            batch_size=self.batch_size,
            num_heads_q=self.num_heads_q,
            num_heads_kv=self.num_heads_kv,
            head_dim=self.head_dim,
            mask_mode=self.mask_mode,
            win_left=self.win_left,
            win_right=self.win_right,
            layout_q=self.layout_q,
        )


def problem_fingerprint(
    *,
    batch_size: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    mask_mode: int,
    win_left: int,
    win_right: int,
    layout_q: str,
) -> int:
    """Hash what a metadata table and a call must agree on, the same in every process."""
    text = (
        f"{batch_size},{num_heads_q},{num_heads_kv},{head_dim},"
        f"{mask_mode},{win_left},{win_right},{layout_q}"
    )
    return zlib.crc32(text.encode()) & 0x7FFFFFFF
