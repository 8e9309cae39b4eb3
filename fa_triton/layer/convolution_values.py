"""Checks of the short convolutions that read a device, for ``FA_TRITON_CHECK_VALUES=1``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fa_triton.validation.slot_values import check_counts, check_slots, check_starts

if TYPE_CHECKING:
    import torch

    from fa_triton.layer.convolution_problem import ConvolutionProblem


def check_convolution_values(
    problem: ConvolutionProblem,
    indices_name: str,
    query_start_loc: torch.Tensor | None,
    indices: torch.Tensor | None,
    num_accepted_tokens: torch.Tensor | None,
) -> None:
    """Check what only a copy to the host can tell, which synchronises.

    Raises:
        ValueError: A start, a slot or a count of accepted tokens that no kernel could honour.
    """
    lengths = np.full(problem.num_sequences, problem.num_tokens)
    if query_start_loc is not None:
        lengths = check_starts("query_start_loc", _to_host(query_start_loc), problem.num_tokens)
        if (lengths > problem.longest).any():
            raise ValueError(
                f"`max_query_len` must be at least the longest query {int(lengths.max())}, "
                f"got {problem.longest}"
            )
    skipped = np.zeros(problem.num_sequences, dtype=bool)
    if indices is not None:
        slots = _to_host(indices)
        skipped = slots == problem.pad_slot_id
        check_slots(indices_name, slots, problem.num_slots, skipped=skipped, used=lengths > 0)
    if num_accepted_tokens is not None:
        runs = np.flatnonzero(~skipped & (lengths > 0))
        accepted = np.ones(problem.num_sequences, np.int64)
        accepted[runs] = _to_host(num_accepted_tokens)[runs]
        room = problem.num_columns - problem.width + 2
        check_counts("num_accepted_tokens", accepted, room, "the windows of a state")


def _to_host(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().astype(np.int64)
