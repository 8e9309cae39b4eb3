"""Run one case of ``incre_flash_attention``: it is refused by its rule, or computed and judged."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.cases.files import with_changes
from fa_triton.cases.incre_call import check_readable, make_incre_arguments, meta_incre_arguments
from fa_triton.cases.incre_case import IncreCase
from fa_triton.cases.incre_judge import judge_incre
from fa_triton.cases.result import ACCEPTED, PLAN, REFUSED, CaseResult, refusal_faults
from fa_triton.cases.work import attention_flops, visible_pairs
from fa_triton.device import cpu_mode
from fa_triton.incremental import incre_flash_attention
from fa_triton.incremental_problem import IncreProblem
from fa_triton.validation.incremental import validate_incre_flash_attention


def run_incre_case(case: IncreCase, device: torch.device, max_gflop: float) -> CaseResult:
    """Run one case.

    Args:
        case: The case.
        device: Where to compute.
        max_gflop: Compute up to so many 1e9 floating-point operations, validate only above.
    """
    if case.ours.refused or not (case.succeeds or case.ours.accepted):
        return _refuse(case)
    return _take(case, device, max_gflop)


def incre_refusal(case: IncreCase) -> Exception | None:
    """The error that refuses a case, before anything is computed; None if it is taken."""
    try:
        validate_incre_flash_attention(**meta_incre_arguments(case))
    except (ValueError, TypeError, RuntimeError) as error:
        return error
    return None


def count_gflop(problem: IncreProblem) -> float:
    """Operations of both products, in 1e9; keys whose number a device knows count as full."""
    attn = problem.attn
    lens = [problem.prefix_length + own for own in problem.host_lengths or problem.rooms]
    pairs = visible_pairs([attn.seqlen_q] * len(lens), lens, attn.window)
    return attention_flops(pairs, attn.num_heads_q, attn.head_dim, attn.head_dim_v) / 1e9


def _refuse(case: IncreCase) -> CaseResult:
    try:
        check_readable(case)
        check_readable(with_changes(case))
    except ValueError as error:
        return CaseResult(case, REFUSED, False, detail=f"unreadable: {error}")
    raw, changed = incre_refusal(case), incre_refusal(with_changes(case))
    if changed is None or raw is None:
        return CaseResult(case, ACCEPTED, False, detail="must be refused, got accepted")
    wrong = refusal_faults(case.ours, changed)
    reason = [case.ours.refused] if case.ours.refused else []
    told = f"{type(changed).__name__}: {changed}"
    return CaseResult(case, REFUSED, not wrong, detail="; ".join((*wrong, *reason, told)))


def _take(case: IncreCase, device: torch.device, max_gflop: float) -> CaseResult:
    path = ACCEPTED if case.ours.accepted else PLAN
    remark = case.ours.accepted or case.ours.note
    gflop = judgement = None
    try:
        changed = with_changes(case)
        problem = validate_incre_flash_attention(**meta_incre_arguments(changed))
        faults = _shape_faults(changed, problem)
        gflop = count_gflop(problem)
        if gflop <= max_gflop:
            if not case.ours.accepted:
                path = cpu_mode() if device.type == "cpu" else device.type
            arguments = make_incre_arguments(changed, device)
            out: Any = incre_flash_attention(**arguments)
            judgement = judge_incre(arguments, out, None)
            faults += judgement.faults
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        faults = [f"{type(error).__name__}: {error}"]
    return CaseResult(case, path, not faults, gflop, judgement, "; ".join(faults) or remark)


def _shape_faults(case: IncreCase, problem: IncreProblem) -> list[str]:
    """Compare what the case says of the result with what validation says."""
    told = case.attention_out
    if told is None or tuple(told.shape) == problem.out_shape:
        return []
    return [f"out must have shape {tuple(told.shape)}, got {problem.out_shape}"]
