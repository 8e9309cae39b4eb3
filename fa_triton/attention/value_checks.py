"""Checks that read a device, for ``FA_TRITON_CHECK_VALUES=1``: lengths, page ids, plan tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fa_triton.planner import AttnWork, make_plan
from fa_triton.planner.table import HEADER_WORDS, encode
from fa_triton.planner.table_check import check_table
from fa_triton.validation import check_page_ids, resolve_lengths

if TYPE_CHECKING:
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
        words = metadata.cpu().numpy()
        header = check_table(
            words,
            num_heads_q=problem.num_heads_q,
            num_heads_kv=problem.num_heads_kv,
            head_dim=problem.head_dim,
        )
        _check_planned_lengths(q_lens, header)
        check_exact_lengths(problem, q_lens, kv_lens, words, header)


def check_exact_lengths(
    problem: AttnProblem,
    q_lens: np.ndarray,
    kv_lens: np.ndarray,
    words: np.ndarray,
    header: Header,
) -> None:
    """Refuse a table of ``section_stream_k`` with a left window that other lengths made.

    It names the cuts by absolute key blocks; those of other lengths lead outside of the workspace.

    Args:
        problem: The validated call.
        q_lens: Query lengths on the host ``[B]``.
        kv_lens: Key lengths on the host ``[B]``.
        words: The table on the host.
        header: Its header.

    Raises:
        ValueError: The plan of these lengths is another one.
    """
    if not (header.is_section_stream_k and problem.has_left_window):
        return
    work = AttnWork(
        q_lens=q_lens,
        kv_lens=kv_lens,
        num_heads_q=problem.num_heads_q,
        num_heads_kv=problem.num_heads_kv,
        head_dim=problem.head_dim,
        mask_mode=problem.mask_mode,
        win_left=problem.win_left,
        win_right=problem.win_right,
        layout_q=problem.layout_q,
        layout_out=problem.layout_out,
    )
    plan = make_plan(
        "section_stream_k",
        work,
        num_aic=header.num_aic,
        num_aiv=header.num_aiv,
        block_q=header.block_q,
        block_kv=header.block_kv,
    )
    wanted = encode(plan)[HEADER_WORDS:]
    if not np.array_equal(wanted, words[HEADER_WORDS : HEADER_WORDS + wanted.size]):
        raise ValueError(
            "`metadata` of section_stream_k with a left window must be made for the lengths of the "
            "call, got a table for others; use planner='balanced'"
        )


def _check_planned_lengths(q_lens: np.ndarray, header: Header) -> None:
    """Refuse query lengths that the plan leaves out."""
    longest = int(q_lens.max())
    if longest > header.longest_q:
        raise ValueError(
            f"`metadata` must be made for queries of {longest} tokens, "
            f"got a table for at most {header.longest_q}"
        )
