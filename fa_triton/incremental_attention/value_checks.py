"""Checks that read a device, for ``FA_TRITON_CHECK_VALUES=1``: lengths, page ids, scales, plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fa_triton.attention.value_checks import check_exact_lengths
from fa_triton.incremental_attention.views import antiquant_table
from fa_triton.planner.table_check import check_table
from fa_triton.validation import check_page_ids
from fa_triton.validation.antiquant import PER_TOKEN
from fa_triton.validation.incremental_lengths import own_keys, resolve_actual_lengths

if TYPE_CHECKING:
    from fa_triton.incremental_problem import Cache, IncreOptions, IncreProblem


def check_values(problem: IncreProblem, key: Cache, options: IncreOptions) -> None:
    """Check what only a copy to the host can tell, which synchronises.

    Args:
        problem: The validated call.
        key: Its keys.
        options: Its options, none of them an empty tensor.

    Raises:
        ValueError: A length, a page id, a scale or a word of the plan that no result could honour.
    """
    attn = problem.attn
    given = options.get("actual_seq_lengths")
    lengths = resolve_actual_lengths(problem, given if isinstance(given, torch.Tensor) else None)
    table = options.get("block_table")
    if table is not None and isinstance(key, torch.Tensor):
        table = table.cpu()
        check_page_ids(
            table.numpy(),
            np.array(lengths, dtype=np.int64),
            page_size=attn.page_size,
            num_pages=key.shape[0],
        )
    padding = options.get("kv_padding_size")
    spans = own_keys(problem, lengths, 0 if padding is None else int(padding.item()))
    for name in ("antiquant_scale", "antiquant_offset"):
        numbers = options.get(name)
        if numbers is not None:
            _check_antiquant(name, numbers, problem, spans, table)
    for name in ("quant_scale2", "quant_offset2"):
        numbers = options.get(name)
        if numbers is not None:
            _refuse_not_finite(name, numbers, "all")
    metadata = options.get("metadata")
    if metadata is not None:
        words = metadata.cpu().numpy()
        header = check_table(
            words,
            num_heads_q=attn.num_heads_q,
            num_heads_kv=attn.num_heads_kv,
            head_dim=attn.head_dim,
        )
        q_lens = np.full(attn.batch_size, attn.seqlen_q, np.int64)
        kv_lens = np.array([length for _, length in spans], np.int64)
        check_exact_lengths(attn, q_lens, kv_lens, words, header)


def _check_antiquant(
    name: str,
    numbers: torch.Tensor,
    problem: IncreProblem,
    spans: list[tuple[int, int]],
    table: torch.Tensor | None,
) -> None:
    """Scales and offsets of keys that are read; those of other tokens may be anything."""
    if problem.quant not in PER_TOKEN:
        _refuse_not_finite(name, numbers, "all")
        return
    # axes: side, sequence or page, head, token
    tokens = antiquant_table(numbers, problem).cpu()
    for b, (start, length) in enumerate(spans):
        if table is None:
            used = tokens[:, b, :, start : start + length]
        else:
            pages = table[b, : -(-length // problem.attn.page_size)].long()
            used = tokens[:, pages].transpose(1, 2).flatten(2)[..., :length]
        _refuse_not_finite(name, used, f"those of the keys of sequence {b}")


def _refuse_not_finite(name: str, numbers: torch.Tensor, which: str) -> None:
    wrong = ~torch.isfinite(numbers)
    if wrong.any():
        raise ValueError(
            f"`{name}` must be finite, {which}, got {numbers[wrong][0].item()} in "
            f"{int(wrong.sum())} of {numbers.numel()}"
        )
