"""Random batches for the kernel tests: one description, tensors in any layout.

Everything that a call must not read is NaN: queries, keys and values behind the actual lengths, the
tails of pages, unused pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.layout import is_paged
from tests.flash_attn.paging import Paging
from tests.oracle import Report, compare

MASKS: dict[str, dict[str, int]] = {
    "none": {},
    "causal": {"mask_mode": 3},
    "sliding": {"mask_mode": 4, "win_left": 29, "win_right": 0},
    "band": {"mask_mode": 4, "win_left": 50, "win_right": 9},
    "left": {"mask_mode": 4, "win_left": 40},
    "right": {"mask_mode": 4, "win_right": 5},
    "diagonal": {"mask_mode": 4, "win_left": 0, "win_right": 0},
}
# What a plan and a call both say.
_SHARED_OPTIONS = ("cu_seqlens", "seqused", "mask", "win", "layout", "batch_invariant")


@dataclass(frozen=True)
class Batch:
    """Lengths, heads and options of a batch; dense layouts pad to the longest sequence.

    Attributes:
        q_lens: Actual query lengths.
        kv_lens: Actual key lengths.
        heads: Query and key/value heads.
        head_dim: Columns of q and k.
        head_dim_v: Columns of v, 0 for those of k.
        dtype: Of q, k and v.
        layout: Layout of q, and of k and v without ``paging``.
        layout_out: Layout of the result, empty for that of q.
        paging: The cache that k and v lie in.
        mask: Name in ``MASKS``; ``options`` may change the windows.
        has_sinks: Whether query heads have sinks.
        has_slopes: Whether query heads have slopes of a distance bias.
        padding: Tokens that q, k and v have room for past the longest sequence.
        planned_q: Query lengths that a plan is made for, at least the actual ones.
        planned_kv: Key lengths that a plan is made for.
        seed: Of all random values.
        options: Further arguments of the call.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 64
    head_dim_v: int = 0
    dtype: torch.dtype = torch.float16
    layout: str = "BSND"
    layout_out: str = ""
    paging: Paging | None = None
    mask: str = "causal"
    has_sinks: bool = False
    has_slopes: bool = False
    padding: int = 0
    planned_q: tuple[int, ...] = ()
    planned_kv: tuple[int, ...] = ()
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        heads = f"{self.heads[0]}:{self.heads[1]}"
        pages = f"-{self.paging}" if self.paging else ""
        columns = f"{self.head_dim}:{self.head_dim_v}" if self.head_dim_v else f"{self.head_dim}"
        size = f"b{len(self.q_lens)}"
        return f"{self.layout}{pages}-{self.mask}-h{heads}-d{columns}-{dtype}-{size}"

    def tensors(self) -> tuple[list[torch.Tensor], dict[str, Any]]:
        """Return q, k, v and the keyword arguments of the call."""
        generator = torch.Generator().manual_seed(self.seed)

        def make(lens: tuple[int, ...], heads: int, columns: int) -> list[torch.Tensor]:
            shapes = ((length, heads, columns) for length in lens)
            return [torch.randn(shape, generator=generator).to(self.dtype) for shape in shapes]

        query_heads, kv_heads = self.heads
        queries = make(self.q_lens, query_heads, self.head_dim)
        keys = make(self.kv_lens, kv_heads, self.head_dim)
        values = make(self.kv_lens, kv_heads, self.head_dim_v or self.head_dim)
        options = {
            **self._layouts(),
            **self._lengths(self.q_lens, self.kv_lens),
            "softmax_scale": self.head_dim**-0.5,
            "return_softmax_lse": True,
            **MASKS[self.mask],
            **self.options,
        }
        if self.has_sinks:
            options["sinks"] = torch.randn(query_heads, generator=generator)
        if self.has_slopes:
            options["alibi_slopes"] = 0.2 * torch.randn(query_heads, generator=generator)
        q = self._dense(queries, self._room_q)
        if self.paging is None:
            return [
                q,
                self._dense(keys, self._room_kv),
                self._dense(values, self._room_kv),
            ], options
        table = self.paging.table(self.kv_lens, self._room_kv, generator)
        options["block_table"] = table
        return [q, self.paging.cache(keys, table), self.paging.cache(values, table)], options

    def metadata(self, **plan: Any) -> torch.Tensor:
        """Plan the batch with ``flash_attn_metadata``."""
        call = {
            **self._layouts(),
            **self._lengths(self._room_q, self._room_kv),
            **MASKS[self.mask],
            **self.options,
        }
        shared = {name: call[name] for name in call if name.startswith(_SHARED_OPTIONS)}
        if self.layout != "TND":
            shared["max_seqlen_q"] = max(*self._room_q, 1) + self.padding
            shared["max_seqlen_kv"] = max(*self._room_kv, 1) + self.padding
        if self.paging is not None:
            shared["page_size"] = self.paging.page_size
        size = len(self.q_lens)
        return flash_attn_metadata(
            *self.heads, self.head_dim, batch_size=size, **{**shared, **plan}
        )

    def compare(self, **plan: Any) -> Report:
        """Run the kernels, with a plan of these arguments if there are any, beside the oracle."""
        (q, k, v), options = self.tensors()
        metadata = self.metadata(**plan) if plan or self.planned_q or self.planned_kv else None
        out, lse = flash_attn(q, k, v, metadata=metadata, **options)
        return compare(out, lse, q, k, v, **options)

    def check(self, **plan: Any) -> None:
        """Fail unless the kernels keep the error budget."""
        report = self.compare(**plan)
        assert not report.faults, f"\n{report}"

    def but(self, **changes: Any) -> Batch:
        """Return the batch with some fields changed."""
        return replace(self, **changes)

    @property
    def _room_q(self) -> tuple[int, ...]:
        return self.planned_q or self.q_lens

    @property
    def _room_kv(self) -> tuple[int, ...]:
        return self.planned_kv or self.kv_lens

    def _layouts(self) -> dict[str, str]:
        return {
            "layout_q": self.layout,
            "layout_kv": self.paging.layout if self.paging else self.layout,
            "layout_out": self.layout_out or self.layout,
        }

    def _lengths(self, q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> dict[str, Any]:
        """Length tensors, each only where the shapes do not say it."""
        sides = (
            ("q", self.layout, q_lens, self.planned_q, self._room_q),
            ("kv", self._layouts()["layout_kv"], kv_lens, self.planned_kv, self._room_kv),
        )
        tensors: dict[str, Any] = {}
        for side, layout, lens, planned, room in sides:
            is_packed = layout == "TND"
            is_ragged = len(set(lens)) > 1 or self.padding > 0
            if is_packed:
                tensors[f"cu_seqlens_{side}"] = starts(room)
            if planned or is_paged(layout) or (is_ragged and not is_packed):
                tensors[f"seqused_{side}"] = torch.tensor(lens, dtype=torch.int32)
        return tensors

    def _dense(self, sequences: list[torch.Tensor], room: tuple[int, ...]) -> torch.Tensor:
        """Lay out sequences ``[length, N, D]``, each with its room, NaN where it has no token."""
        heads, columns = sequences[0].shape[1:]
        if self.layout == "TND":
            total = max(sum(room) + self.padding, 1)
            packed = torch.full((total, heads, columns), torch.nan, dtype=self.dtype)
            for first, tokens in zip(starts(room).tolist(), sequences, strict=False):
                packed[first : first + len(tokens)] = tokens
            return packed
        longest = max(*room, 1) + self.padding
        dense = torch.full((len(room), longest, heads, columns), torch.nan, dtype=self.dtype)
        for b, tokens in enumerate(sequences):
            dense[b, : len(tokens)] = tokens
        return dense if self.layout == "BSND" else dense.transpose(1, 2).contiguous()


def starts(lens: tuple[int, ...]) -> torch.Tensor:
    """Cumulative lengths as ``cu_seqlens``."""
    return torch.tensor((0, *lens), dtype=torch.int32).cumsum(0, dtype=torch.int32)
