"""Checks of ``recurrent_kda`` that read a device, for ``FA_TRITON_CHECK_VALUES=1``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fa_triton.validation.slot_values import check_counts, check_slots, check_starts

if TYPE_CHECKING:
    import torch

    from fa_triton.delta_rule.recurrent_problem import RecurrentOptions, RecurrentProblem


def check_recurrent_values(problem: RecurrentProblem, options: RecurrentOptions) -> None:
    """Check what only a copy to the host can tell, which synchronises.

    Raises:
        ValueError: A start, a slot or a count of accepted tokens that no kernel could honour.
    """
    lengths = np.full(problem.num_sequences, problem.sizes.num_tokens)
    cu_seqlens = options.get("cu_seqlens")
    if cu_seqlens is not None:
        lengths = check_starts("cu_seqlens", _to_host(cu_seqlens), problem.sizes.num_tokens)
    indices_tensor = options.get("ssm_state_indices")
    if indices_tensor is None:
        return
    indices = _to_host(indices_tensor)
    skipped = indices < problem.skip_index_below
    used = lengths > 0
    accepted_tensor = options.get("num_accepted_tokens")
    if indices.ndim == 2:
        steps = indices.shape[1]
        first = np.zeros(problem.num_sequences, np.int64)
        if accepted_tensor is not None:
            # counts of sequences that are not there may be anything
            counts = used & ~skipped.all(1)
            accepted = np.where(counts, _to_host(accepted_tensor), 1)
            check_counts("num_accepted_tokens", accepted, steps, "the columns of the indices")
            first = accepted - 1
        runs = used & ~skipped[np.arange(len(first)), first]
        if problem.has_step_slots and (lengths[runs] > steps).any():
            longest = int(lengths[runs].max())
            raise ValueError(
                f"`ssm_state_indices` must have a column for each of {longest} tokens, got {steps}"
            )
        columns = np.arange(steps)
        writes = (columns < lengths[:, None]) if problem.has_step_slots else columns < 0
        used = runs[:, None] & (writes | (columns == first[:, None]))
    check_slots(
        "ssm_state_indices",
        indices,
        problem.num_slots,
        skipped=skipped,
        used=used,
        is_written=problem.in_place,
    )


def _to_host(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().astype(np.int64)
