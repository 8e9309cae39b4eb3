"""Random batches for the kernel tests: one description, tensors in any layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fa_triton import flash_attn, flash_attn_metadata
from tests.oracle import Report, assert_accurate

MASKS: dict[str, dict[str, int]] = {
    "none": {},
    "causal": {"mask_mode": 3},
    "sliding": {"mask_mode": 4, "win_left": 29, "win_right": 0},
    "band": {"mask_mode": 4, "win_left": 50, "win_right": 9},
    "left": {"mask_mode": 4, "win_left": 40},
    "right": {"mask_mode": 4, "win_right": 5},
    "diagonal": {"mask_mode": 4, "win_left": 0, "win_right": 0},
}


@dataclass(frozen=True)
class Batch:
    """Lengths, heads and options of a batch; dense layouts pad to the longest sequence."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 64
    dtype: torch.dtype = torch.float16
    layout: str = "BSND"
    layout_out: str = ""
    mask: str = "causal"
    has_sinks: bool = False
    padding: int = 0
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        heads = f"{self.heads[0]}:{self.heads[1]}"
        return f"{self.layout}-{self.mask}-h{heads}-d{self.head_dim}-{dtype}-b{len(self.q_lens)}"

    def tensors(self) -> tuple[list[torch.Tensor], dict[str, Any]]:
        """Return q, k, v and the keyword arguments of the call."""
        generator = torch.Generator().manual_seed(self.seed)

        def make(lens: tuple[int, ...], heads: int) -> torch.Tensor:
            shape = {
                "BSND": (len(lens), max(*lens, 1) + self.padding, heads),
                "BNSD": (len(lens), heads, max(*lens, 1) + self.padding),
                "TND": (max(sum(lens) + self.padding, 1), heads),
            }[self.layout]
            return torch.randn(*shape, self.head_dim, generator=generator).to(self.dtype)

        query_heads, kv_heads = self.heads
        q = make(self.q_lens, query_heads)
        k, v = make(self.kv_lens, kv_heads), make(self.kv_lens, kv_heads)
        options: dict[str, Any] = {
            "layout_q": self.layout,
            "layout_kv": self.layout,
            "layout_out": self.layout_out or self.layout,
            "softmax_scale": self.head_dim**-0.5,
            "return_softmax_lse": True,
            **MASKS[self.mask],
            **self.options,
        }
        if self.layout == "TND":
            options |= {
                "cu_seqlens_q": starts(self.q_lens),
                "cu_seqlens_kv": starts(self.kv_lens),
            }
        else:
            if len(set(self.q_lens)) > 1 or self.padding:
                options["seqused_q"] = torch.tensor(self.q_lens, dtype=torch.int32)
            if len(set(self.kv_lens)) > 1 or self.padding:
                options["seqused_kv"] = torch.tensor(self.kv_lens, dtype=torch.int32)
        if self.has_sinks:
            options["sinks"] = torch.randn(query_heads, generator=generator)
        return [q, k, v], options

    def metadata(self, **plan: Any) -> torch.Tensor:
        """Plan the batch with ``flash_attn_metadata``."""
        _, options = self.tensors()
        shared = {
            name: value
            for name, value in options.items()
            if name.startswith(("cu_seqlens", "seqused", "mask", "win", "layout"))
        }
        if self.layout != "TND":
            shared["max_seqlen_q"] = max(*self.q_lens, 1) + self.padding
            shared["max_seqlen_kv"] = max(*self.kv_lens, 1) + self.padding
        return flash_attn_metadata(
            *self.heads, self.head_dim, batch_size=len(self.q_lens), **shared, **plan
        )

    def check(self, **plan: Any) -> Report:
        """Run the kernels, with a plan of these arguments if there are any, against the oracle."""
        (q, k, v), options = self.tensors()
        metadata = self.metadata(**plan) if plan else None
        out, lse = flash_attn(q, k, v, metadata=metadata, **options)
        return assert_accurate(out, lse, q, k, v, **options)

    def but(self, **changes: Any) -> Batch:
        """Return the batch with some fields changed."""
        return replace(self, **changes)


def starts(lens: tuple[int, ...]) -> torch.Tensor:
    """Cumulative lengths as ``cu_seqlens``."""
    return torch.tensor((0, *lens), dtype=torch.int32).cumsum(0, dtype=torch.int32)
