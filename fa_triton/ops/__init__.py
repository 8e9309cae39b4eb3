"""``torch.ops.fa_triton``: every public operator as an operator of torch, with a fake kernel.

Importing this package registers them. The public functions call them wherever torch watches
(``torch.compile``, ``torch.export``, fake and meta tensors, dispatch modes), and the implementation
directly otherwise.
"""

from __future__ import annotations

from fa_triton.ops import (
    attention,
    convolution,
    gated_norm,
    incremental,
    kda,
    merge,
    metadata,
    recurrent_kda,
)

__all__ = [
    "attention",
    "convolution",
    "gated_norm",
    "incremental",
    "kda",
    "merge",
    "metadata",
    "recurrent_kda",
]
