"""Valid calls on the meta device, for tests that break one rule at a time.

A meta tensor has no values, so a rule that read one would fail here.
"""

from __future__ import annotations

from typing import Any

import torch

META = torch.device("meta")
TEMPLATE = (2048, 2048)


def tensor(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def ints(*shape: int) -> torch.Tensor:
    return tensor(*shape, dtype=torch.int32)


def floats(*shape: int) -> torch.Tensor:
    return tensor(*shape, dtype=torch.float32)


def template(dtype: torch.dtype = torch.int8, shape: tuple[int, ...] = TEMPLATE) -> torch.Tensor:
    return tensor(*shape, dtype=dtype)


def dense(**changes: Any) -> dict[str, Any]:
    """B 2, Sq 8, Skv 16, Nq 4, Nkv 2, D 64 in BSND."""
    call = {"q": tensor(2, 8, 4, 64), "k": tensor(2, 16, 2, 64), "v": tensor(2, 16, 2, 64)}
    return call | changes


def packed(**changes: Any) -> dict[str, Any]:
    """Three sequences in 20 query and 40 key tokens."""
    call = {
        "q": tensor(20, 4, 64),
        "k": tensor(40, 2, 64),
        "v": tensor(40, 2, 64),
        "cu_seqlens_q": ints(4),
        "cu_seqlens_kv": ints(4),
        "layout_q": "TND",
        "layout_kv": "TND",
        "layout_out": "TND",
    }
    return call | changes


def paged(**changes: Any) -> dict[str, Any]:
    """Two sequences whose keys lie in 10 pages of 32 tokens."""
    call = {
        "q": tensor(2, 8, 4, 64),
        "k": tensor(10, 32, 2, 64),
        "v": tensor(10, 32, 2, 64),
        "block_table": ints(2, 5),
        "seqused_kv": ints(2),
        "layout_kv": "PA_BBND",
    }
    return call | changes


def metadata(**changes: Any) -> dict[str, Any]:
    """A dense batch for ``flash_attn_metadata``."""
    call = {
        "num_heads_q": 4,
        "num_heads_kv": 2,
        "head_dim": 64,
        "batch_size": 3,
        "max_seqlen_q": 8,
        "max_seqlen_kv": 16,
    }
    return call | changes


def packed_metadata(**changes: Any) -> dict[str, Any]:
    """A packed batch for ``flash_attn_metadata``."""
    call = {
        "num_heads_q": 4,
        "num_heads_kv": 2,
        "head_dim": 64,
        "cu_seqlens_q": ints(4),
        "cu_seqlens_kv": ints(4),
        "layout_q": "TND",
        "layout_kv": "TND",
        "layout_out": "TND",
    }
    return call | changes
