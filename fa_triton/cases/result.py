"""What became of a case, and the words for how far it went."""

from __future__ import annotations

from dataclasses import dataclass

from fa_triton.cases.case import Ours
from fa_triton.cases.files import Case
from fa_triton.cases.judge import Judgement

PLAN = "plan"
REFUSED = "refused"
ACCEPTED = "accepted"
NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class CaseResult:
    """What became of a case.

    Attributes:
        case: The case.
        path: How far it went: ``native`` or another word for the device that computed it, ``plan``
            (validated, planned, shapes compared), ``refused``, ``accepted`` (the file expects a
            refusal), ``not applicable``.
        passed: Whether that is what it should be.
        gflop: Floating-point operations of the call, in 1e9; None where it was refused.
        judgement: Errors, where it was computed.
        detail: Why it failed, the message of a refusal, or a remark.
        seconds: How long it took.
    """

    case: Case
    path: str
    passed: bool
    gflop: float | None = None
    judgement: Judgement | None = None
    detail: str = ""
    seconds: float = 0.0


def refusal_faults(ours: Ours, error: Exception) -> list[str]:
    """Where an error is not the one that must refuse the case."""
    wrong = []
    if ours.error is not None and type(error).__name__ != ours.error:
        wrong.append(f"must be refused by {ours.error}")
    wrong += [f"the message must say {part!r}" for part in ours.says if part not in str(error)]
    return wrong
