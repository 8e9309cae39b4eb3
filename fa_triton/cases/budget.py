"""The error that a result may have: constants, how errors are summed up, what is too much.

A result may have 1.1 times the RMS error of an emulation that rounds nothing but P and the result,
and twice its largest error. CANN's own tests ask that at most 0.5 % of the elements miss an
absolute and relative tolerance; where that emulation misses it too, no kernel with P in the input
dtype can keep it, and a result may have 1.1 times the emulation's share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

RMS_FACTOR = 1.1
MAX_FACTOR = 2.0
LSE_FACTOR = 2.0
FLOAT32_STEP = 2.0**-23

# Absolute and relative tolerance per dtype, and the share of elements that may miss it.
VENDOR_TOLERANCE = {torch.bfloat16: (1e-4, 7.8125e-3), torch.float16: (2.5e-5, 5e-3)}
VENDOR_MAX_FAIL_RATIO = 0.005

# Elements that are compared at a time, to bound the temporaries.
_PART = 2**22


@dataclass(frozen=True)
class Error:
    """Error of one result against float64.

    Attributes:
        rms: Root-mean-square error.
        largest: Largest absolute error.
        vendor_fail_ratio: Share of elements that miss CANN's tolerance; 0 for dtypes without one.
    """

    rms: float
    largest: float
    vendor_fail_ratio: float

    def __str__(self) -> str:
        """Print the three numbers."""
        return (
            f"rms {self.rms:.3e}  max {self.largest:.3e}  vendor fail {self.vendor_fail_ratio:.3%}"
        )


class ErrorSum:
    """Errors of a result that is compared piece by piece."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Begin with nothing; ``dtype`` chooses the tolerance."""
        self._tolerance = VENDOR_TOLERANCE.get(dtype)
        self._squares = 0.0
        self._largest = 0.0
        self._misses = 0
        self._count = 0

    def add(self, result: torch.Tensor, exact: torch.Tensor) -> None:
        """Compare one piece with float64; a NaN in either makes the errors NaN."""
        parts = zip(result.reshape(-1).split(_PART), exact.reshape(-1).split(_PART), strict=True)
        for result_part, exact_part in parts:
            self._add(result_part, exact_part)

    def _add(self, result: torch.Tensor, exact: torch.Tensor) -> None:
        difference = result.double().sub_(exact).abs_()
        self._count += difference.numel()
        self._squares += difference.dot(difference).item()
        largest = difference.max().item()
        # a NaN stays: nothing is greater
        if math.isnan(largest) or largest > self._largest:
            self._largest = largest
        if self._tolerance is not None:
            atol, rtol = self._tolerance
            within = difference.le_(exact.abs().mul_(rtol).add_(atol))
            self._misses += difference.numel() - int(within.sum().item())

    @property
    def count(self) -> int:
        """Elements so far."""
        return self._count

    def total(self) -> Error:
        """Errors over all pieces."""
        count = max(self._count, 1)
        return Error(math.sqrt(self._squares / count), self._largest, self._misses / count)


@dataclass(frozen=True)
class Limits:
    """The largest errors a result may have.

    Attributes:
        rms: Of the RMS error.
        largest: Of the largest error.
        vendor_fail_ratio: Of the share that misses CANN's tolerance.
    """

    rms: float
    largest: float
    vendor_fail_ratio: float

    def faults(self, error: Error) -> list[str]:
        """Say where an error is above its limit; NaN is above every limit."""
        faults = []
        if not error.rms <= self.rms:
            faults.append(f"rms error {error.rms:.3e} above {self.rms:.3e}")
        if not error.largest <= self.largest:
            faults.append(f"largest error {error.largest:.3e} above {self.largest:.3e}")
        if not error.vendor_fail_ratio <= self.vendor_fail_ratio:
            faults.append(
                f"{error.vendor_fail_ratio:.3%} of the elements miss CANN's tolerance, above "
                f"{self.vendor_fail_ratio:.3%}"
            )
        return faults


def limits(
    emulation: Error,
    *,
    count: int,
    exact_rms: float,
    exact_largest: float,
    rms_factor: float = RMS_FACTOR,
) -> Limits:
    """Limits for a result of ``count`` elements.

    Args:
        emulation: Error of the emulation.
        count: Elements of the result.
        exact_rms: RMS of the exact result.
        exact_largest: Its largest absolute value.
        rms_factor: Allowed RMS error in units of the emulation's.
    """
    # 1/sqrt(count) is the scatter of an RMS over few elements; the floors are fp32 arithmetic.
    factor = rms_factor + 1 / math.sqrt(count)
    return Limits(
        rms=factor * emulation.rms + 2 * FLOAT32_STEP * exact_rms,
        largest=MAX_FACTOR * emulation.largest + 2 * FLOAT32_STEP * exact_largest,
        vendor_fail_ratio=max(VENDOR_MAX_FAIL_RATIO, factor * emulation.vendor_fail_ratio),
    )
