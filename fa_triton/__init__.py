"""FlashAttention and Kimi Delta Attention in Triton for Ascend NPUs, also native on the CPU.

Importing this package imports neither triton nor a device library: the public functions are
resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fa_triton.flash_attention import flash_attn, flash_attn_metadata
    from fa_triton.gated_norm import rms_norm_gated
    from fa_triton.incremental import incre_flash_attention
    from fa_triton.kda import chunk_kda, chunk_kda_fwd, kda_gate_cumsum
    from fa_triton.merge import merge_attn_states
    from fa_triton.recurrent import recurrent_kda
    from fa_triton.short_convolution import causal_conv1d_fn, causal_conv1d_update

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_kda",
    "chunk_kda_fwd",
    "flash_attn",
    "flash_attn_metadata",
    "incre_flash_attention",
    "kda_gate_cumsum",
    "merge_attn_states",
    "recurrent_kda",
    "rms_norm_gated",
]

_HOMES = {
    "causal_conv1d_fn": "fa_triton.short_convolution",
    "causal_conv1d_update": "fa_triton.short_convolution",
    "chunk_kda": "fa_triton.kda",
    "chunk_kda_fwd": "fa_triton.kda",
    "flash_attn": "fa_triton.flash_attention",
    "flash_attn_metadata": "fa_triton.flash_attention",
    "incre_flash_attention": "fa_triton.incremental",
    "kda_gate_cumsum": "fa_triton.kda",
    "merge_attn_states": "fa_triton.merge",
    "recurrent_kda": "fa_triton.recurrent",
    "rms_norm_gated": "fa_triton.gated_norm",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name, on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
