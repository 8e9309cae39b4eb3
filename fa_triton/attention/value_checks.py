"""Checks that read a device, for ``FA_TRITON_CHECK_VALUES=1``: lengths, page ids, plan tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa_triton.planner.table_check import check_table
from fa_triton.validation import check_page_ids, resolve_lengths

if TYPE_CHECKING:
    import numpy as np

    from fa_triton.attention.kernels import Lengths
    from fa_triton.planner.table import Header
    from fa_triton.problem import AttnProblem


def check_values(
    problem: AttnProblem,
    lengths: Lengths,
    k: torch.Tensor,
    block_table: torch.Tensor | None,
    metadata: torch.Tensor | None,
) -> None:
    """Check what only a copy to the host can tell, which synchronises.

    Raises:
        ValueError: A length, a page id or a word of the table that no kernel could honour.
    """
    q_lens, kv_lens = resolve_lengths(problem, **vars(lengths))
    if block_table is not None:
        check_page_ids(
            block_table.cpu().numpy(), kv_lens, page_size=problem.page_size, num_pages=k.shape[0]
        )
    if metadata is not None:
        header = check_table(
            metadata.cpu().numpy(),
            num_heads_q=problem.num_heads_q,
            num_heads_kv=problem.num_heads_kv,
            head_dim=problem.head_dim,
        )
        _check_planned_lengths(q_lens, header)


def _check_planned_lengths(q_lens: np.ndarray, header: Header) -> None:
    """Refuse query lengths that the plan leaves out."""
    longest = int(q_lens.max())
    if longest > header.longest_q:
        raise ValueError(
            f"`metadata` must be made for queries of {longest} tokens, "
            f"got a table for at most {header.longest_q}"
        )
