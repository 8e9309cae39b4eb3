"""Plan a described call, as its caller would: by ``flash_attn_metadata`` from lengths alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fa_triton.cases.call import CaseCall
from fa_triton.flash_attention import flash_attn_metadata
from fa_triton.problem import AttnProblem, Side


def plan_case(
    call: CaseCall,
    problem: AttnProblem,
    device: torch.device,
    *,
    num_aic: int | None = None,
    num_aiv: int | None = None,
) -> torch.Tensor:
    """Make the plan table of a call.

    Args:
        call: The call, with the values of its lengths.
        problem: What validation made of it.
        device: Where the table goes.
        num_aic: Matrix cores to plan for, None for the device's.
        num_aiv: Vector cores to plan for, None for the device's.
    """
    lengths: dict[str, Any] = {
        name: torch.from_numpy(values.astype(np.int32)).to(device)
        for name, values in call.lengths().items()
    }
    return flash_attn_metadata(
        problem.num_heads_q,
        problem.num_heads_kv,
        problem.head_dim,
        **lengths,
        batch_size=problem.batch_size,
        max_seqlen_q=_longest(problem.side("q")),
        max_seqlen_kv=problem.max_seqlen_kv if problem.is_paged else _longest(problem.side("kv")),
        mask_mode=problem.mask_mode,
        win_left=problem.win_left,
        win_right=problem.win_right,
        layout_q=problem.layout_q,
        layout_kv=problem.layout_kv,
        layout_out=problem.layout_out,
        page_size=problem.page_size or None,
        num_aic=num_aic,
        num_aiv=num_aiv,
        device=device,
    )


def _longest(side: Side) -> int:
    """The sequence axis, or the bound that the call gives where there is none."""
    return side.max_seqlen if side.layout == "TND" else side.seqlen
