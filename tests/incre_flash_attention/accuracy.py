"""Error budget of a result: 1.1 times the RMS error of what rounds only what must be stored."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.cases.incre_judge import judge_incre


def assert_accurate(out: torch.Tensor, lse: torch.Tensor | None, call: dict[str, Any]) -> None:
    faults = faults_of(out, lse, call)
    assert not faults, "; ".join(faults)


def faults_of(out: torch.Tensor, lse: torch.Tensor | None, call: dict[str, Any]) -> list[str]:
    # the tolerance of CANN's tests is meant for larger results than these
    faults = judge_incre(call, out, lse).faults
    return [fault for fault in faults if "CANN's tolerance" not in fault]
