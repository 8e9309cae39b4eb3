"""Valid calls of ``incre_flash_attention`` on the meta device, to break one rule at a time."""

from __future__ import annotations

from typing import Any

import torch

from tests.validation.calls import tensor

i8, i64 = torch.int8, torch.int64
bf16, f32 = torch.bfloat16, torch.float32


def dense(**changes: Any) -> dict[str, Any]:
    """B 2, one token, N 4, Nkv 2, D 32, S 40 in BNSD."""
    call = {
        "query": tensor(2, 4, 1, 32),
        "key": tensor(2, 2, 40, 32),
        "value": tensor(2, 2, 40, 32),
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "BNSD",
    }
    return call | changes


def hidden(**changes: Any) -> dict[str, Any]:
    """The same in BSH."""
    call = {
        "query": tensor(2, 1, 128),
        "key": tensor(2, 40, 64),
        "value": tensor(2, 40, 64),
        "input_layout": "BSH",
    }
    return dense() | call | changes


def drafts(**changes: Any) -> dict[str, Any]:
    """Three query tokens."""
    return dense(query=tensor(2, 4, 3, 32)) | changes


def listed(**changes: Any) -> dict[str, Any]:
    """Two tensors of 40 and 9 keys."""
    cache = [tensor(1, 2, 40, 32), tensor(1, 2, 9, 32)]
    return dense(key=cache, value=list(cache)) | changes


def paged(**changes: Any) -> dict[str, Any]:
    """Seven pages of 32 tokens, heads packed; three pages per sequence."""
    call = {
        "key": tensor(7, 32, 64),
        "value": tensor(7, 32, 64),
        "block_table": tensor(2, 3, dtype=torch.int32),
        "actual_seq_lengths": [40, 9],
    }
    return dense() | call | changes


def int8(**changes: Any) -> dict[str, Any]:
    """A dense int8 cache, scaled per channel."""
    call = {
        "key": tensor(2, 2, 40, 32, dtype=i8),
        "value": tensor(2, 2, 40, 32, dtype=i8),
        "antiquant_scale": tensor(2, 2, 1, 32),
        "antiquant_offset": tensor(2, 2, 1, 32),
    }
    return dense() | call | changes


def int8_pages(**changes: Any) -> dict[str, Any]:
    """A paged int8 cache, scaled per token."""
    call = {
        "key": tensor(7, 32, 64, dtype=i8),
        "value": tensor(7, 32, 64, dtype=i8),
        "antiquant_scale": tensor(2, 7, 32, dtype=f32),
    }
    return paged() | call | changes


def padded(**changes: Any) -> dict[str, Any]:
    """Keys that end before a padding."""
    call = {"kv_padding_size": tensor(1, dtype=i64), "actual_seq_lengths": [30, 9]}
    return dense() | call | changes


def quantised(**changes: Any) -> dict[str, Any]:
    """A result in int8."""
    return dense(quant_scale2=tensor(1, dtype=f32), quant_offset2=tensor(1, dtype=f32)) | changes


def prefixed(**changes: Any) -> dict[str, Any]:
    """A shared prefix of 5 keys."""
    prefix = {f"{name}_shared_prefix": tensor(1, 2, 5, 32) for name in ("key", "value")}
    return dense() | prefix | changes
