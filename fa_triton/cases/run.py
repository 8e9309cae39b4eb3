"""Run one case: validate, plan, compute and judge; or plan only, where computing takes too long."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fa_triton.cases.attention_call import describe_attention
from fa_triton.cases.call import CaseCall
from fa_triton.cases.case import AttentionCase, RuleCase
from fa_triton.cases.coverage import check_coverage
from fa_triton.cases.files import Case, with_changes
from fa_triton.cases.incre_case import IncreCase
from fa_triton.cases.incre_run import run_incre_case
from fa_triton.cases.judge import Judgement, judge
from fa_triton.cases.planning import plan_case
from fa_triton.cases.result import (
    ACCEPTED,
    NOT_APPLICABLE,
    PLAN,
    REFUSED,
    CaseResult,
    refusal_faults,
)
from fa_triton.cases.rule_call import describe_rule, with_lengths
from fa_triton.cases.tensors import make_arguments, meta_arguments
from fa_triton.cases.work import MAX_GFLOP, attention_flops, visible_pairs
from fa_triton.device import cpu_mode
from fa_triton.flash_attention import flash_attn
from fa_triton.problem import AttnProblem
from fa_triton.targets import A2
from fa_triton.validation import check_lengths_on_host, resolve_lengths, validate_flash_attn


@dataclass(frozen=True, eq=False)
class PreparedCase:
    """A valid case before anything is computed.

    Attributes:
        call: The call.
        problem: What validation made of it.
        lengths: Actual query and key lengths.
        gflop: Floating-point operations, in 1e9.
    """

    call: CaseCall
    problem: AttnProblem
    lengths: tuple[np.ndarray, np.ndarray]
    gflop: float


def run_case(case: Case, device: torch.device, max_gflop: float = MAX_GFLOP) -> CaseResult:
    """Run one case.

    Args:
        case: The case.
        device: Where to compute.
        max_gflop: Compute up to so many 1e9 floating-point operations, plan only above.

    Returns:
        What became of it. Errors of the library are results too; none is raised.
    """
    begin = time.perf_counter()
    if case.ours.not_applicable:
        result = CaseResult(case, NOT_APPLICABLE, True, detail=case.ours.not_applicable)
    elif isinstance(case, IncreCase):
        result = run_incre_case(case, device, max_gflop)
    elif isinstance(case, RuleCase) and not (case.succeeds or case.ours.accepted):
        result = _refuse(case)
    else:
        result = _take(case, device, max_gflop)
    return replace(result, seconds=time.perf_counter() - begin)


def describe(case: AttentionCase | RuleCase) -> CaseCall:
    """Describe the call of a case, with our changes.

    Raises:
        ValueError: The case does not describe a call.
    """
    if isinstance(case, AttentionCase):
        return describe_attention(with_changes(case))
    return describe_rule(with_changes(case))


def refusal(call: CaseCall) -> Exception | None:
    """The error that refuses a call, before anything is computed; None if it is taken."""
    try:
        arguments = meta_arguments(call)
        problem = validate_flash_attn(**arguments)
        lengths: dict[str, Any] = call.lengths()
        given = [name for name in call.small if name.startswith(("cu_seqlens", "seqused"))]
        if given and len(lengths) == len(given):
            check_lengths_on_host(problem, **lengths)
    except (ValueError, TypeError, RuntimeError) as error:
        return error
    return None


def _refuse(case: RuleCase) -> CaseResult:
    """A case that must be refused: as the file has it, and by the error that we name."""
    try:
        raw = refusal(describe_rule(case))
        changed = refusal(describe(case))
    except ValueError as error:
        return CaseResult(case, REFUSED, False, detail=f"unreadable: {error}")
    if changed is None or raw is None:
        return CaseResult(case, ACCEPTED, False, detail="must be refused, got accepted")
    wrong = refusal_faults(case.ours, changed)
    told = f"{type(changed).__name__}: {changed}"
    return CaseResult(case, REFUSED, not wrong, detail="; ".join((*wrong, told)))


def prepare(case: AttentionCase | RuleCase) -> PreparedCase:
    """Describe, validate and count a case without memory for its tensors.

    Raises:
        ValueError, TypeError, NotImplementedError: The case is no call, or one that is refused.
    """
    call = describe(case)
    problem = validate_flash_attn(**meta_arguments(call))
    if isinstance(case, RuleCase):
        call = with_lengths(call, problem.page_size)
    lengths = resolve_lengths(problem, **call.lengths())
    pairs = visible_pairs(lengths[0].tolist(), lengths[1].tolist(), problem.window)
    flops = attention_flops(pairs, problem.num_heads_q, problem.head_dim, problem.head_dim_v)
    return PreparedCase(call, problem, lengths, flops / 1e9)


def _take(case: AttentionCase | RuleCase, device: torch.device, max_gflop: float) -> CaseResult:
    """A case that must be taken: computed, or planned where computing takes too long."""
    path = ACCEPTED if case.ours.accepted else PLAN
    remark = case.ours.accepted or case.ours.note
    gflop = judgement = None
    try:
        prepared = prepare(case)
        gflop = prepared.gflop
        if gflop > max_gflop:
            faults = _trace(prepared) + _plan(prepared)
        else:
            path = path if case.ours.accepted else _path(device)
            judgement, faults = _compute(prepared, device)
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        faults = [f"{type(error).__name__}: {error}"]
    told = "; ".join(faults) or remark
    return CaseResult(case, path, not faults, gflop, judgement, told)


def _trace(prepared: PreparedCase) -> list[str]:
    """Call the operator on tensors without memory and compare the shapes of the results."""
    return _shape_faults(prepared, *flash_attn(**meta_arguments(prepared.call)))


def _plan(prepared: PreparedCase) -> list[str]:
    """Plan for an NPU's cores and look for blocks that are left out or repeated."""
    words = plan_case(
        prepared.call,
        prepared.problem,
        torch.device("cpu"),
        num_aic=A2.cube_cores,
        num_aiv=A2.vector_cores,
    )
    return list(check_coverage(words.numpy(), prepared.problem, prepared.lengths).faults)


def _compute(prepared: PreparedCase, device: torch.device) -> tuple[Judgement, list[str]]:
    """Plan, run and judge a call; also returns what is wrong with the results."""
    arguments = make_arguments(prepared.call, device)
    metadata = plan_case(prepared.call, prepared.problem, device)
    out, lse = flash_attn(**arguments, metadata=metadata)
    faults = _shape_faults(prepared, out, lse)
    judgement = judge(arguments, out, lse if prepared.problem.return_softmax_lse else None)
    return judgement, [*faults, *judgement.faults]


def _shape_faults(prepared: PreparedCase, out: torch.Tensor, lse: torch.Tensor) -> list[str]:
    """Compare results, which may be without memory, with what the case says of their shapes."""
    call = prepared.call
    lse_shape = call.lse_shape if prepared.problem.return_softmax_lse else (1,)
    return [
        f"{name} must be {dtype} {shape}, got {got.dtype} {tuple(got.shape)}"
        for name, got, dtype, shape in (
            ("out", out, call.q.dtype, call.out_shape),
            ("lse", lse, torch.float32, lse_shape),
        )
        if got.dtype != dtype or (shape is not None and tuple(got.shape) != shape)
    ]


def _path(device: torch.device) -> str:
    return cpu_mode() if device.type == "cpu" else device.type
