"""Error budget of an attention result: what the tests of every implementation compare with.

The oracle is float64. A result may have at most 1.1 times the RMS error of an emulation that rounds
nothing but P and the result, and twice its largest error. The error of eager torch in the input
dtype stands beside it in the report, and the failure ratio of the vendor's own tolerance.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from typing_extensions import Unpack

from fa_triton.cases.budget import (
    FLOAT32_STEP,
    LSE_FACTOR,
    RMS_FACTOR,
    VENDOR_MAX_FAIL_RATIO,
    Error,
    ErrorSum,
    limits,
)
from fa_triton.problem import AttnOptions
from fa_triton.reference import flash_attn_eager, flash_attn_emulation, flash_attn_reference

log = logging.getLogger(__name__)

# For 16-bit inputs; docs/numerics.md says why.
LARGEST_SHORT_CAP = 256.0


@dataclass(frozen=True)
class Report:
    """A result beside its yardsticks, and every way in which it falls short."""

    error: Error
    emulation: Error
    eager: Error
    rms_limit: float
    max_limit: float
    lse_error: float
    lse_limit: float
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            (
                f"result     {self.error}",
                f"emulation  {self.emulation}",
                f"eager      {self.eager}",
                f"limits     rms {self.rms_limit:.3e}  max {self.max_limit:.3e}",
                f"lse        max {self.lse_error:.3e}  limit {self.lse_limit:.3e}",
                *(f"FAULT      {fault}" for fault in self.faults),
            )
        )


def measure(result: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> Error:
    """Error of ``result`` against the float64 tensor ``exact``."""
    errors = ErrorSum(dtype)
    errors.add(result, exact)
    return errors.total()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Small operations lose more to waiting threads than they gain, above all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def compare(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    rms_factor: float = RMS_FACTOR,
    vendor: bool = False,
    **options: Unpack[AttnOptions],
) -> Report:
    """Compare a result of ``flash_attn`` with the oracle.

    Args:
        out: The result.
        lse: Its log-sum-exp, or None where none was asked for.
        q: Queries of the call.
        k: Keys of the call.
        v: Values of the call.
        rms_factor: Allowed RMS error in units of the emulation's.
        vendor: Hold the vendor's tolerance too; it is meant for uniform inputs of [-5, 5] or more.
        **options: Keyword arguments of the call.
    """
    options["return_softmax_lse"] = True
    exact, exact_lse = flash_attn_reference(q, k, v, out_dtype=torch.float64, **options)
    emulated, _ = flash_attn_emulation(q, k, v, **options)
    eager, _ = flash_attn_eager(q, k, v, **options)
    faults: list[str] = []
    if out.dtype != q.dtype or out.shape != exact.shape:
        return _mismatch(
            f"out must be {q.dtype} {tuple(exact.shape)}, got {out.dtype} {tuple(out.shape)}"
        )

    error = measure(out, exact, q.dtype)
    emulation = measure(emulated, exact, q.dtype)
    allowed = limits(
        emulation,
        count=out.numel(),
        exact_rms=exact.square().mean().sqrt().item(),
        exact_largest=exact.abs().max().item(),
        rms_factor=rms_factor,
    )
    rms_limit, max_limit = allowed.rms, allowed.largest
    if not error.rms <= rms_limit:
        faults.append(f"rms error {error.rms:.3e} above {rms_limit:.3e}")
    if not error.largest <= max_limit:
        faults.append(f"largest error {error.largest:.3e} above {max_limit:.3e}")
    if vendor and q.dtype == torch.float16 and error.vendor_fail_ratio > VENDOR_MAX_FAIL_RATIO:
        faults.append(f"{error.vendor_fail_ratio:.3%} miss the vendor's tolerance")
    if vendor and q.dtype == torch.bfloat16:
        limit = (rms_factor + 1 / math.sqrt(out.numel())) * emulation.vendor_fail_ratio
        if error.vendor_fail_ratio > max(limit, VENDOR_MAX_FAIL_RATIO):
            faults.append(f"{error.vendor_fail_ratio:.3%} miss the vendor's tolerance")

    lse_error, lse_limit = 0.0, 0.0
    if lse is not None:
        lse_error, lse_limit = _compare_lse(lse, exact_lse, q, k, v, options, faults)
    return Report(
        error=error,
        emulation=emulation,
        eager=measure(eager, exact, q.dtype),
        rms_limit=rms_limit,
        max_limit=max_limit,
        lse_error=lse_error,
        lse_limit=lse_limit,
        faults=tuple(faults),
    )


def assert_accurate(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    rms_factor: float = RMS_FACTOR,
    vendor: bool = False,
    **options: Unpack[AttnOptions],
) -> Report:
    """Fail with the whole report unless the result keeps the budget; arguments of compare."""
    report = compare(out, lse, q, k, v, rms_factor=rms_factor, vendor=vendor, **options)
    log.info("\n%s", report)
    assert not report.faults, f"\n{report}"
    return report


def _mismatch(fault: str) -> Report:
    nothing = Error(math.nan, math.nan, math.nan)
    return Report(nothing, nothing, nothing, math.nan, math.nan, math.nan, math.nan, (fault,))


def _compare_lse(
    lse: torch.Tensor,
    exact: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: AttnOptions,
    faults: list[str],
) -> tuple[float, float]:
    """Largest error of the log-sum-exp, and the limit from fp32 logits."""
    if lse.dtype != torch.float32 or lse.shape != exact.shape:
        faults.append(
            f"lse must be torch.float32 {tuple(exact.shape)}, got {lse.dtype} {tuple(lse.shape)}"
        )
        return math.nan, math.nan
    empty = exact == torch.inf
    if not torch.equal(lse == torch.inf, empty):
        wrong = int(((lse == torch.inf) != empty).sum())
        faults.append(f"lse must be +inf exactly in rows without a key, got {wrong} wrong rows")
        return math.nan, math.nan
    if empty.all():
        return 0.0, 0.0
    _, stored = flash_attn_emulation(q.float(), k.float(), v.float(), **options)
    yardstick = (stored.double() - exact)[~empty].abs().max().item()
    limit = LSE_FACTOR * yardstick + 4 * FLOAT32_STEP * (1 + exact[~empty].abs().max().item())
    limit += _short_cap_error(q.dtype, options.get("softcap", 0.0))
    error = (lse.double() - exact)[~empty].abs().max().item()
    if not error <= limit:
        faults.append(f"lse error {error:.3e} above {limit:.3e}")
    return error, limit


def _short_cap_error(dtype: torch.dtype, softcap: float) -> float:
    """What a soft cap may cost: its last digit, where the kernels take the short form of tanh."""
    is_short = dtype != torch.float32 and softcap <= LARGEST_SHORT_CAP
    return FLOAT32_STEP * softcap if is_short else 0.0
