"""Caches in pages of fractals as pages of rows, where the kernels cannot load fractals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from fa_triton.attention.fractals import problem_of_rows, unfold
from fa_triton.validation.antiquant import PER_TOKEN

if TYPE_CHECKING:
    from fa_triton.attention.kernels import KeyTensors
    from fa_triton.incremental_attention.spans import KeySpans
    from fa_triton.incremental_attention.tensors import Caches
    from fa_triton.incremental_problem import IncreOptions, IncreProblem
    from fa_triton.planner.table import Header


def of_rows(problem: IncreProblem) -> IncreProblem:
    """The problem that the attention kernels get; the same one where they load its layout."""
    attn = problem_of_rows(problem.attn)
    return problem if attn is problem.attn else replace(problem, attn=attn)


def unfold_caches(
    problem: IncreProblem,
    keys: KeyTensors,
    options: IncreOptions,
    spans: KeySpans,
    header: Header,
) -> tuple[Caches, KeyTensors, IncreOptions]:
    """Copy the keys that a call attends to, and move scales per token to their new pages.

    Args:
        problem: The validated call, on PA_NZ.
        keys: Its pages and block table.
        options: Its options, none of them an empty tensor.
        spans: Its lengths; with pages validation asks for them.
        header: Of its plan.
    """
    rows = unfold(problem.attn, keys, spans.lengths, header.longest_q)
    moved: dict[str, object] = dict(options)
    if problem.quant in PER_TOKEN and rows.sources is not None:
        pages = rows.sources.clamp(0, keys.k.shape[0] - 1)
        for name in ("antiquant_scale", "antiquant_offset"):
            table = moved.get(name)
            if isinstance(table, torch.Tensor):
                moved[name] = table.index_select(1, pages)
    caches = [rows.keys.k], [rows.keys.v]
    return caches, rows.keys, cast("IncreOptions", moved)
