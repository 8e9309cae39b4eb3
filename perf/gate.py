"""No timing without a correct result: error against float64, beside that of plain rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.reference import flash_attn_emulation, flash_attn_reference
from perf.candidates import our_options
from perf.shapes import Tensors, Workload

# RMS error of ours over that of an emulation that rounds only what must be stored.
MAX_ERROR_RATIO = 1.1
# In fp32 nothing but the order of the sums differs: a kernel adds 4096 keys tile by tile, torch's
# matmul in the emulation pairwise (SDPA itself: 2.2 in the decode workload).
MAX_ERROR_RATIO_FP32 = 4.0


@dataclass(frozen=True)
class Accuracy:
    """Root-mean-square errors against float64.

    Attributes:
        ours: Of the result that was checked.
        emulation: Of exact arithmetic that rounds P and the result to the input dtype.
        max_error: Largest absolute error of ours.
        limit: Largest allowed ratio of the two.
    """

    ours: float
    emulation: float
    max_error: float
    limit: float

    @property
    def ratio(self) -> float:
        """Error of ours over that of the emulation."""
        return self.ours / self.emulation

    @property
    def passed(self) -> bool:
        """Whether a timing of this result means something."""
        return self.ratio <= self.limit


def check(workload: Workload, tensors: Tensors, result: torch.Tensor) -> Accuracy:
    """Compare a result with float64."""
    options = our_options(workload, tensors)
    inputs = (tensors.q, tensors.k, tensors.v)
    exact, _ = flash_attn_reference(*inputs, out_dtype=torch.float64, **options)
    rounded, _ = flash_attn_emulation(*inputs, **options)
    error = result.double() - exact
    return Accuracy(
        ours=error.square().mean().sqrt().item(),
        emulation=(rounded.double() - exact).square().mean().sqrt().item(),
        max_error=error.abs().max().item(),
        limit=MAX_ERROR_RATIO_FP32 if result.dtype == torch.float32 else MAX_ERROR_RATIO,
    )
