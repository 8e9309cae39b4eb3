"""The result in eight bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa_triton.incremental_attention.views import output_quant_view

if TYPE_CHECKING:
    from fa_triton.incremental_problem import IncreOptions, IncreProblem


def quantise(out: torch.Tensor, options: IncreOptions, problem: IncreProblem) -> torch.Tensor:
    """Round ``out * scale + offset`` to even and saturate it to int8; ``out`` is fp32."""
    scale, offset = options.get("quant_scale2"), options.get("quant_offset2")
    if scale is None:
        return out
    scaled = out * output_quant_view(scale, problem)
    if offset is not None and problem.has_quant_offset2:
        scaled += output_quant_view(offset, problem)
    return scaled.round_().clamp_(-128, 127).to(torch.int8)
