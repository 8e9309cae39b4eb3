"""Valid calls of Kimi Delta Attention, for tests that break one rule at a time."""

from __future__ import annotations

from typing import Any

import torch

bf16, f32 = torch.bfloat16, torch.float32


def zeros(*shape: int, dtype: torch.dtype = bf16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def dense(**changes: Any) -> dict[str, Any]:
    """B 2, T 8, H 2, HV 4, K 32, V 16 in BSND, gate given."""
    call = {
        "q": zeros(2, 8, 2, 32),
        "k": zeros(2, 8, 2, 32),
        "v": zeros(2, 8, 4, 16),
        "g": zeros(2, 8, 4, 32, dtype=f32),
        "beta": zeros(2, 8, 4, dtype=f32),
        "scale": 1.0,
        "chunk_size": 64,
    }
    return call | changes


def packed(**changes: Any) -> dict[str, Any]:
    """Three sequences in 8 tokens, TND."""
    call = {name: value[0] for name, value in dense().items() if isinstance(value, torch.Tensor)}
    call |= {"scale": 1.0, "chunk_size": 64, "layout": "TND"}
    return call | {"cu_seqlens": torch.tensor([0, 3, 3, 8])} | changes


def raw_gate(**changes: Any) -> dict[str, Any]:
    """Gate in the kernel."""
    gate = {
        "use_gate_in_kernel": True,
        "A_log": zeros(4, dtype=f32),
        "dt_bias": zeros(128, dtype=f32),
    }
    return dense() | gate | changes


def pool(**changes: Any) -> dict[str, Any]:
    """Call ``chunk_kda`` with states of the packed sequences in a pool of 5 slots."""
    states = {
        "initial_state": zeros(5, 4, 32, 16, dtype=f32),
        "ssm_state_indices": torch.tensor([4, 0, -1], dtype=torch.int32),
        "output_final_state": True,
    }
    return packed() | states | changes


def gate_only(**changes: Any) -> dict[str, Any]:
    """Call ``kda_gate_cumsum``."""
    return {"g": zeros(2, 4, 8, 32, dtype=f32), "chunk_size": 64} | changes
