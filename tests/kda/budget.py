"""Error budget of the chunked forward, result by result.

The oracle is float64. Each result may have 1.1 times the RMS error of an emulation that rounds what
is stored between the phases and read by 16-bit products, and twice its largest error; errors are
relative to the RMS of the exact result. Absolute limits hold beside it.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch

from fa_triton.delta_rule.outputs import ChunkKdaOutputs
from fa_triton.kda_reference import chunk_kda_reference
from tests.kda.problems import OUTPUTS, one_thread

log = logging.getLogger(__name__)

RMS_FACTOR = 1.1
MAX_FACTOR = 2.0
# What float32 sums cost a result that is stored in float32.
FLOAT32_FLOOR = 1e-6
GK_LIMIT = 2e-7
RMS_LIMIT = {torch.bfloat16: 3.5e-3, torch.float16: 5e-4}
LIMITED = ("attn_out", "w", "u", "v_new", "h")
# Subnormal numbers of float16 have an absolute step.
SMALLEST_ERROR = {torch.bfloat16: 0.0, torch.float16: 1e-6}
CHOICES = ("output_final_state", "disable_recompute", "return_intermediate_states", "outputs")


@dataclass(frozen=True)
class Verdict:
    """Errors of one result relative to the RMS of the exact one, and what was allowed."""

    name: str
    rms: float
    rms_limit: float
    largest: float
    largest_limit: float

    @property
    def is_fault(self) -> bool:
        # NaN is above every limit
        return not (self.rms <= self.rms_limit and self.largest <= self.largest_limit)

    def __str__(self) -> str:
        return (
            f"{self.name:12} rms {self.rms:.3e} of {self.rms_limit:.3e}  "
            f"max {self.largest:.3e} of {self.largest_limit:.3e}{'  FAULT' * self.is_fault}"
        )


def oracle(arguments: dict[str, Any], **options: Any) -> ChunkKdaOutputs:
    """Every result of a call in float64, or with the given ``out_dtype`` and ``emulate``."""
    arguments = {name: value for name, value in arguments.items() if name not in CHOICES}
    with one_thread():
        return chunk_kda_reference(
            **arguments, outputs=OUTPUTS, **{"out_dtype": torch.float64, **options}
        )


def compare(
    results: ChunkKdaOutputs, arguments: dict[str, Any], *, has_absolute_limits: bool = True
) -> list[Verdict]:
    """Judge every result that is there and has elements."""
    dtype = arguments["q"].dtype
    exact = oracle(arguments)
    emulated = oracle(arguments, out_dtype=dtype, emulate=dtype)
    samples = max(arguments["v"].numel(), 1)
    with one_thread():
        return [
            _judge(
                name,
                getattr(results, name),
                getattr(exact, name),
                getattr(emulated, name),
                dtype=dtype,
                samples=samples,
                has_absolute_limits=has_absolute_limits,
            )
            for name in OUTPUTS
            if getattr(results, name) is not None and getattr(exact, name).numel()
        ]


def assert_accurate(
    results: ChunkKdaOutputs, arguments: dict[str, Any], *, has_absolute_limits: bool = True
) -> None:
    """Hold every result that is there to the budget."""
    verdicts = compare(results, arguments, has_absolute_limits=has_absolute_limits)
    report = "\n".join(map(str, verdicts))
    log.info("\n%s", report)
    assert not any(verdict.is_fault for verdict in verdicts), f"\n{report}"


def _judge(
    name: str,
    result: torch.Tensor,
    exact: torch.Tensor,
    emulated: torch.Tensor,
    *,
    dtype: torch.dtype,
    samples: int,
    has_absolute_limits: bool,
) -> Verdict:
    assert result.shape == exact.shape, f"{name}: {tuple(result.shape)}, not {tuple(exact.shape)}"
    size = max(_rms(exact), 1e-30)
    error, yardstick = result.double() - exact, emulated.double() - exact
    rms_limit = GK_LIMIT
    largest_limit = 10 * GK_LIMIT * exact.abs().max().item() / size
    if name != "gk":
        # 1/sqrt(samples) is the scatter of an RMS over few roundings.
        factor = RMS_FACTOR + 1 / math.sqrt(samples)
        rms_limit = factor * _rms(yardstick) / size + FLOAT32_FLOOR
        largest_limit = MAX_FACTOR * yardstick.abs().max().item() / size
        largest_limit += torch.finfo(dtype).eps * exact.abs().max().item() / size
        if has_absolute_limits and name in LIMITED:
            rms_limit = min(rms_limit, RMS_LIMIT[dtype])
        rms_limit = max(rms_limit, SMALLEST_ERROR[dtype] / size)
        largest_limit = max(largest_limit, 4 * SMALLEST_ERROR[dtype] / size)
    return Verdict(
        name, _rms(error) / size, rms_limit, error.abs().max().item() / size, largest_limit
    )


def _rms(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()
