"""Error budget of a result of ``incre_flash_attention``.

The oracle is float64; a result may have 1.1 times the RMS error and twice the largest error of an
emulation that rounds dequantised keys and values, the weights and the result, nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.cases.budget import FLOAT32_STEP, LSE_FACTOR, ErrorSum, limits
from fa_triton.incremental_reference import incre_flash_attention_reference

# Roundings of logits in fp32, in units of the largest log-sum-exp.
LSE_STEPS = 16


def faults_of(out: torch.Tensor, lse: torch.Tensor | None, call: dict[str, Any]) -> list[str]:
    """Say where a result falls short."""
    exact, exact_lse = incre_flash_attention_reference(**call, out_dtype=torch.float64)
    emulated, emulated_lse = incre_flash_attention_reference(**call, emulate=True)
    if out.dtype != emulated.dtype or out.shape != exact.shape:
        return [
            f"out must be {emulated.dtype} {tuple(exact.shape)}, got {out.dtype} {tuple(out.shape)}"
        ]
    error, emulation = ErrorSum(out.dtype), ErrorSum(out.dtype)
    error.add(out, exact)
    emulation.add(emulated, exact)
    allowed = limits(
        emulation.total(),
        count=out.numel(),
        exact_rms=exact.square().mean().sqrt().item(),
        exact_largest=exact.abs().max().item(),
    )
    found = [fault for fault in allowed.faults(error.total()) if "CANN's tolerance" not in fault]
    return found if lse is None else found + _lse_faults(lse, exact_lse, emulated_lse)


def assert_accurate(out: torch.Tensor, lse: torch.Tensor | None, call: dict[str, Any]) -> None:
    faults = faults_of(out, lse, call)
    assert not faults, "; ".join(faults)


def _lse_faults(lse: torch.Tensor, exact: torch.Tensor, emulated: torch.Tensor) -> list[str]:
    if lse.dtype != torch.float32 or lse.shape != exact.shape:
        return [f"lse must be float32 {tuple(exact.shape)}, got {lse.dtype} {tuple(lse.shape)}"]
    empty = exact == torch.inf
    if not torch.equal(lse == torch.inf, empty):
        return ["lse must be +inf exactly in rows without a visible key"]
    if empty.all():
        return []
    exact = exact[~empty]
    yardstick = (emulated.double()[~empty] - exact).abs().max().item()
    limit = LSE_FACTOR * yardstick + LSE_STEPS * FLOAT32_STEP * (1 + exact.abs().max().item())
    error = (lse.double()[~empty] - exact).abs().max().item()
    return [] if error <= limit else [f"lse error {error:.3e} above {limit:.3e}"]
