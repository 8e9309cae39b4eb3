"""Small calls of the operators with real values, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

Tensors = dict[str, torch.Tensor]


def random(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass(frozen=True)
class Call:
    """One call of ``flash_attn``: tensors, which a test may replace, and plain options."""

    tensors: Tensors
    options: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        return self.tensors | self.options

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        """Return all arguments, tensors changed."""
        return {name: change(tensor) for name, tensor in self.tensors.items()} | self.options


def dense(**options: Any) -> Call:
    tensors = {"q": random(2, 8, 4, 64), "k": random(2, 16, 2, 64), "v": random(2, 16, 2, 64)}
    return Call(tensors, options)


def head_major(layout_out: str, **options: Any) -> Call:
    tensors = {"q": random(2, 4, 8, 64), "k": random(2, 2, 16, 64), "v": random(2, 2, 16, 64)}
    layouts = {"layout_q": "BNSD", "layout_kv": "BNSD", "layout_out": layout_out}
    return Call(tensors, layouts | options)


def packed(**options: Any) -> Call:
    tensors = {
        "q": random(12, 4, 64),
        "k": random(40, 2, 64),
        "v": random(40, 2, 64, seed=1),
        "cu_seqlens_q": ints(0, 3, 3, 12),
        "cu_seqlens_kv": ints(0, 10, 25, 40),
    }
    layouts = {"layout_q": "TND", "layout_kv": "TND", "layout_out": "TND"}
    return Call(tensors, layouts | options)


def paged(layout_kv: str, **options: Any) -> Call:
    """Queries of two sequences in TND, keys in pages of 32 tokens."""
    shape = {
        "PA_BBND": (10, 32, 2, 64),
        "PA_BNBD": (10, 2, 32, 64),
        "PA_NZ": (10, 2, 4, 32, 16),
    }[layout_kv]
    tensors = {
        "q": random(7, 4, 64),
        "k": random(*shape),
        "v": random(*shape, seed=1),
        "cu_seqlens_q": ints(0, 3, 7),
        "seqused_kv": ints(70, 33),
        "block_table": ints(9, 1, 4, -1, 3, 0, 10**9, -1).view(2, 4),
    }
    layouts = {"layout_q": "TND", "layout_kv": layout_kv, "layout_out": "TND"}
    return Call(tensors, layouts | options)


def other_value_dim(**options: Any) -> Call:
    tensors = {"q": random(2, 5, 4, 72), "k": random(2, 9, 4, 72), "v": random(2, 9, 4, 40)}
    return Call(tensors, options)


def with_everything() -> Call:
    """Sinks, slopes, soft cap, a window and actual lengths."""
    call = dense(
        mask_mode=4,
        win_left=9,
        win_right=0,
        softcap=20.0,
        softmax_scale=0.1,
        return_softmax_lse=True,
        lse_includes_sink=True,
    )
    more = {
        "sinks": random(4, dtype=torch.float32),
        "alibi_slopes": random(4, dtype=torch.float32).abs(),
        "seqused_q": ints(8, 3),
        "seqused_kv": ints(16, 0),
    }
    return Call(call.tensors | more, call.options)


def float32() -> Call:
    call = dense()
    return Call(call.mapped(torch.Tensor.float), call.options)


CALLS = {
    "dense": dense(),
    "dense with lse": dense(return_softmax_lse=True, mask_mode=3),
    "head major": head_major("BNSD", return_softmax_lse=True),
    "head major to BSND": head_major("BSND", return_softmax_lse=True),
    "packed": packed(mask_mode=3, max_seqlen_q=9),
    "packed with lse": packed(return_softmax_lse=True),
    "paged BBND": paged("PA_BBND", mask_mode=3),
    "paged BNBD": paged("PA_BNBD", return_softmax_lse=True),
    "paged NZ": paged("PA_NZ", return_softmax_lse=True),
    "other head dim of v": other_value_dim(return_softmax_lse=True),
    "everything": with_everything(),
    "float32": float32(),
}
_QUICK = ("dense with lse", "packed", "paged NZ", "everything")
# the others run with the slow tests
SOME_CALLS = [
    name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CALLS
]
