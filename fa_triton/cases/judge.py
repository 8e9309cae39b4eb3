"""Judge a result against float64: errors, limits, and every way in which it falls short."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from fa_triton.cases.budget import FLOAT32_STEP, LSE_FACTOR, Error, ErrorSum, Limits, limits
from fa_triton.cases.pieces import Piece, pieces
from fa_triton.reference import flash_attn_emulation, flash_attn_reference


@dataclass(frozen=True)
class Judgement:
    """A result beside its yardsticks.

    Attributes:
        error: Of the result.
        emulation: Of the emulation that rounds only P and the result.
        limits: What the result may have.
        lse_error: Largest error of the log-sum-exp; None where there is none.
        lse_limit: Its limit.
        faults: What is too much; empty for a good result.
    """

    error: Error
    emulation: Error
    limits: Limits
    lse_error: float | None
    lse_limit: float | None
    faults: tuple[str, ...]


def judge(arguments: dict[str, Any], out: torch.Tensor, lse: torch.Tensor | None) -> Judgement:
    """Compare a result with float64, some sequences at a time.

    Args:
        arguments: Arguments of ``flash_attn``.
        out: Its result, of the right shape and dtype.
        lse: Its log-sum-exp, or None where none was asked for.
    """
    if out.device.type not in ("cpu", "cuda"):
        # an NPU has no float64
        arguments = {
            name: value.cpu() if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        out, lse = out.cpu(), None if lse is None else lse.cpu()
    errors, emulations = ErrorSum(out.dtype), ErrorSum(out.dtype)
    lse_sum = _LseSum()
    squares, largest = 0.0, 0.0
    for piece in pieces(arguments, out, lse):
        call: dict[str, Any] = piece.arguments | {"return_softmax_lse": lse is not None}
        exact, exact_lse = flash_attn_reference(**call, out_dtype=torch.float64)
        emulated, _ = flash_attn_emulation(**call)
        errors.add(piece.out, exact)
        emulations.add(emulated, exact)
        squares += exact.view(-1).dot(exact.view(-1)).item()
        largest = max(largest, *(bound.abs().item() for bound in exact.aminmax()))
        if piece.lse is not None:
            lse_sum.add(piece, exact_lse)
    error, emulation = errors.total(), emulations.total()
    allowed = limits(
        emulation,
        count=errors.count,
        exact_rms=math.sqrt(squares / errors.count),
        exact_largest=largest,
    )
    faults = allowed.faults(error)
    if lse is None:
        return Judgement(error, emulation, allowed, None, None, tuple(faults))
    faults += lse_sum.faults()
    return Judgement(error, emulation, allowed, lse_sum.error, lse_sum.limit, tuple(faults))


class _LseSum:
    """Largest error of the log-sum-exp, and the limit from logits stored in fp32."""

    def __init__(self) -> None:
        self.error = 0.0
        self._yardstick = 0.0
        self._largest = 0.0
        self._wrong_rows = 0

    @property
    def limit(self) -> float:
        return LSE_FACTOR * self._yardstick + 4 * FLOAT32_STEP * (1 + self._largest)

    def add(self, piece: Piece, exact: torch.Tensor) -> None:
        if piece.lse is None:
            return
        empty = exact == torch.inf
        self._wrong_rows += int(((piece.lse == torch.inf) != empty).sum())
        if empty.all():
            return
        call: dict[str, Any] = piece.arguments | {"return_softmax_lse": True}
        call |= {name: call[name].float() for name in ("q", "k", "v")}
        _, stored = flash_attn_emulation(**call)
        exact = exact[~empty]
        error = (piece.lse.double()[~empty] - exact).abs().max().item()
        # a NaN stays: nothing is greater
        if math.isnan(error) or error > self.error:
            self.error = error
        yardstick = (stored.double()[~empty] - exact).abs().max().item()
        self._yardstick = max(self._yardstick, yardstick)
        self._largest = max(self._largest, exact.abs().max().item())

    def faults(self) -> list[str]:
        faults = []
        if self._wrong_rows:
            faults.append(
                f"lse must be +inf exactly in rows without a key, got {self._wrong_rows} wrong rows"
            )
        if not self.error <= self.limit:
            faults.append(f"lse error {self.error:.3e} above {self.limit:.3e}")
        return faults
