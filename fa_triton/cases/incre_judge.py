"""Judge a result of ``incre_flash_attention`` against float64."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.cases.budget import FLOAT32_STEP, LSE_FACTOR, ErrorSum, limits
from fa_triton.cases.judge import Judgement
from fa_triton.incremental_reference import incre_flash_attention_reference

# Roundings of logits in fp32, in units of the largest log-sum-exp.
_LSE_STEPS = 16


def judge_incre(
    arguments: dict[str, Any], out: torch.Tensor, lse: torch.Tensor | None
) -> Judgement:
    """Compare a result with float64 and with an emulation that rounds what must be stored.

    Args:
        arguments: Arguments of ``incre_flash_attention``.
        out: Its result.
        lse: Its log-sum-exp, or None where none was asked for.
    """
    exact, exact_lse = incre_flash_attention_reference(**arguments, out_dtype=torch.float64)
    emulated, emulated_lse = incre_flash_attention_reference(**arguments, emulate=True)
    exact, emulated, out = exact.cpu(), emulated.cpu(), out.cpu()
    errors, emulations = ErrorSum(emulated.dtype), ErrorSum(emulated.dtype)
    errors.add(out, exact)
    emulations.add(emulated, exact)
    error, emulation = errors.total(), emulations.total()
    allowed = limits(
        emulation,
        count=errors.count,
        exact_rms=exact.square().mean().sqrt().item(),
        exact_largest=exact.abs().max().item(),
    )
    faults = allowed.faults(error)
    if (out.dtype, out.shape) != (emulated.dtype, emulated.shape):
        faults.append(
            f"out must be {emulated.dtype} {tuple(emulated.shape)}, got {out.dtype} "
            f"{tuple(out.shape)}"
        )
    lse_error = lse_limit = None
    if lse is not None:
        lse_error, lse_limit, found = _judge_lse(lse.cpu(), exact_lse.cpu(), emulated_lse.cpu())
        faults += found
    return Judgement(error, emulation, allowed, lse_error, lse_limit, tuple(faults))


def _judge_lse(
    lse: torch.Tensor, exact: torch.Tensor, emulated: torch.Tensor
) -> tuple[float, float, list[str]]:
    """Largest error of the log-sum-exp, its limit, and what is wrong."""
    if lse.dtype != torch.float32 or lse.shape != exact.shape:
        told = f"lse must be float32 {tuple(exact.shape)}, got {lse.dtype} {tuple(lse.shape)}"
        return torch.nan, torch.nan, [told]
    empty = exact == torch.inf
    wrong = int(((lse == torch.inf) != empty).sum())
    if wrong:
        told = f"lse must be +inf exactly in rows without a key, got {wrong} wrong rows"
        return torch.nan, torch.nan, [told]
    if empty.all():
        return 0.0, 0.0, []
    exact = exact[~empty]
    yardstick = (emulated.double()[~empty] - exact).abs().max().item()
    limit = LSE_FACTOR * yardstick + _LSE_STEPS * FLOAT32_STEP * (1 + exact.abs().max().item())
    error = (lse.double()[~empty] - exact).abs().max().item()
    return error, limit, [] if error <= limit else [f"lse error {error:.3e} above {limit:.3e}"]
