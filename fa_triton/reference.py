"""Eager attention for every layout, mask and option: the oracle of the tests.

Unlike the kernels it has no tiles, no running maximum and no plan: each sequence is cut out of its
layout, a chunk of rows sees all of its keys at once, and one softmax is taken in float64. The same
code with other roundings gives two yardsticks:

* :func:`flash_attn_emulation` rounds what a kernel must store (P and the result), nothing else;
* :func:`flash_attn_eager` computes everything in the input dtype, as eager torch does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fa_triton.problem import AttnOptions, AttnProblem
from fa_triton.validation import check_page_ids, resolve_lengths, validate_flash_attn

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Logits of one chunk of rows, all heads and keys.
CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Rounding:
    """Where a computation rounds.

    Attributes:
        compute: Dtype of all arithmetic.
        weights: Dtype to which the un-normalised weights P are rounded before they meet V.
    """

    compute: torch.dtype
    weights: torch.dtype


def flash_attn_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[AttnOptions],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend in float64, with the contract of ``flash_attn``.

    Args:
        q: Queries in ``layout_q``.
        k: Keys in ``layout_kv``.
        v: Values in ``layout_kv``.
        out_dtype: Of the result; None is the dtype of q. With float64 the log-sum-exp is float64
            too, otherwise float32.
        **options: Keyword arguments of ``flash_attn``; a plan in ``metadata`` is not used.

    Returns:
        out in ``layout_out``; lse ``(B, Nq, Sq)``, or ``(Nq, Tq)`` for TND queries, natural log, or
        a ``[1]`` zero tensor without ``return_softmax_lse``. Rows without a visible key and padding
        rows are 0 and +inf.

    Raises:
        ValueError, TypeError: As ``flash_attn``, and for values of lengths and page ids.

    Notes: Reads lengths and pages on the host.
    """
    rounding = Rounding(torch.float64, torch.float64)
    return _attend(q, k, v, rounding, q.dtype if out_dtype is None else out_dtype, options)


def flash_attn_emulation(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Unpack[AttnOptions]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as exactly as any kernel can that stores P and the result in the input dtype.

    For fp16 and bf16 all else is float64. For fp32 the logits and the sums are stored in fp32 as
    well, so all arithmetic is fp32.
    """
    compute = torch.float32 if q.dtype == torch.float32 else torch.float64
    return _attend(q, k, v, Rounding(compute, q.dtype), q.dtype, options)


def flash_attn_eager(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Unpack[AttnOptions]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with every step in the input dtype, logits included."""
    return _attend(q, k, v, Rounding(q.dtype, q.dtype), q.dtype, options)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rounding: Rounding,
    out_dtype: torch.dtype,
    options: AttnOptions,
) -> tuple[torch.Tensor, torch.Tensor]:
    problem = validate_flash_attn(q, k, v, **options)
    q_lens, kv_lens = resolve_lengths(
        problem,
        cu_seqlens_q=options.get("cu_seqlens_q"),
        cu_seqlens_kv=options.get("cu_seqlens_kv"),
        seqused_q=options.get("seqused_q"),
        seqused_kv=options.get("seqused_kv"),
    )
    # An NPU has no float64.
    device = q.device if q.device.type in ("cpu", "cuda") else torch.device("cpu")
    q, k, v = q.to(device), k.to(device), v.to(device)
    sinks = _moved(options.get("sinks"), device)
    slopes = _moved(options.get("alibi_slopes"), device)
    page_table = _page_table(problem, options.get("block_table"), kv_lens, k.shape[0]).to(device)

    lse_dtype = torch.float64 if out_dtype == torch.float64 else torch.float32
    out = torch.zeros(problem.out_shape, dtype=out_dtype, device=device)
    lse = torch.full(problem.lse_shape, torch.inf, dtype=lse_dtype, device=device)
    q_starts = _starts(options.get("cu_seqlens_q"), problem.batch_size)
    kv_starts = _starts(options.get("cu_seqlens_kv"), problem.batch_size)
    for b in range(problem.batch_size):
        q_len, kv_len = int(q_lens[b]), int(kv_lens[b])
        b_q = sequence_view(q, problem.layout_q, b, q_starts[b], q_len)
        if problem.is_paged:
            # entries behind the last page of a sequence may be anything
            pages = page_table[b, : -(-kv_len // problem.page_size)]
            b_k = gather_pages(k, problem.layout_kv, pages, kv_len)
            b_v = gather_pages(v, problem.layout_kv, pages, kv_len)
        else:
            b_k = sequence_view(k, problem.layout_kv, b, kv_starts[b], kv_len)
            b_v = sequence_view(v, problem.layout_kv, b, kv_starts[b], kv_len)
        b_out = sequence_view(out, problem.layout_out, b, q_starts[b], q_len)
        b_lse = lse[:, q_starts[b] :] if problem.layout_q == "TND" else lse[b]
        for rows, r_out, r_lse in _attend_sequence(problem, rounding, b_q, b_k, b_v, sinks, slopes):
            b_out[:, rows] = r_out.to(out_dtype)
            b_lse[:, rows] = r_lse.to(lse_dtype)
    if not problem.return_softmax_lse:
        lse = torch.zeros(1, dtype=torch.float32, device=device)
    return out.to(problem.device), lse.to(problem.device)


def _attend_sequence(
    problem: AttnProblem,
    rounding: Rounding,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Attend q ``[Nq, sq, D]`` to k and v ``[Nkv, skv, D]``, one chunk of rows after another.

    Yields:
        The rows, their result ``[Nq, rows, Dv]`` and their log-sum-exp ``[Nq, rows]``.
    """
    num_heads_q, q_len, head_dim = q.shape
    num_heads_kv, kv_len, head_dim_v = v.shape
    if kv_len == 0:
        # Nothing to attend to; only a counted sink leaves a trace.
        if sinks is not None and problem.lse_includes_sink:
            zeros = v.new_zeros(num_heads_q, q_len, head_dim_v)
            lse = torch.where(sinks == -torch.inf, torch.inf, sinks)
            yield slice(0, q_len), zeros, lse[:, None].expand(-1, q_len)
        return
    k, v = k.to(rounding.compute), v.to(rounding.compute)
    row_bytes = num_heads_q * kv_len * k.element_size()
    chunk = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, q_len, chunk):
        rows = slice(start, min(start + chunk, q_len))
        num_rows = rows.stop - rows.start
        b_q = q[:, rows].to(rounding.compute)
        # Heads of a group share their keys: [Nkv, group * rows, D].
        b_q = b_q.reshape(num_heads_kv, problem.group * num_rows, head_dim)
        s = (b_q @ k.mT) * problem.softmax_scale
        s = s.reshape(num_heads_q, num_rows, kv_len)
        if problem.softcap:
            s = problem.softcap * torch.tanh(s / problem.softcap)
        # Distance of key j from the diagonal of row i, both ends aligned: j - (i + skv - sq).
        i_row = torch.arange(rows.start, rows.stop, device=q.device)
        i_key = torch.arange(kv_len, device=q.device)
        distance = i_key[None, :] - (i_row[:, None] + (kv_len - q_len))
        if slopes is not None:
            s = s - slopes.to(s.dtype)[:, None, None] * distance.abs().to(s.dtype)
        hidden = hidden_by_window(problem, distance)
        if hidden is not None:
            s = s.masked_fill(hidden, -torch.inf)
        weights, total, lse = softmax_weights(problem, s, sinks)
        weights = weights.to(rounding.weights).to(rounding.compute)
        weights = weights.reshape(num_heads_kv, problem.group * num_rows, kv_len)
        out = (weights @ v).reshape(num_heads_q, num_rows, head_dim_v)
        # A row without a visible key has weights 0; its sum may be the sink's or 0.
        out = out / torch.where(total > 0, total, 1.0)[..., None]
        yield rows, out, lse


def hidden_by_window(problem: AttnProblem, distance: torch.Tensor) -> torch.Tensor | None:
    """Which keys, at a distance from the diagonal, window or causality hide; None for no mask."""
    left, right = problem.window
    hidden = None
    if right >= 0:
        hidden = distance > right
    if left >= 0:
        too_far = distance < -left
        hidden = too_far if hidden is None else hidden | too_far
    return hidden


def softmax_weights(
    problem: AttnProblem, s: torch.Tensor, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Un-normalised weights ``exp(s - max)``, their sum with the sink, and the log-sum-exp."""
    m = s.amax(-1)
    lse = torch.logsumexp(s, -1)
    sink = None if sinks is None else sinks.to(s.dtype)[:, None].expand_as(m)
    if sink is not None:
        m = torch.maximum(m, sink)
        if problem.lse_includes_sink:
            lse = torch.logaddexp(lse, sink)
    m = torch.where(m == -torch.inf, 0.0, m)
    weights = torch.exp(s - m[..., None])
    total = weights.sum(-1)
    if sink is not None:
        total = total + torch.exp(sink - m)
    return weights, total, torch.where(lse == -torch.inf, torch.inf, lse)


def _moved(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


def _starts(cu_seqlens: torch.Tensor | None, batch_size: int) -> list[int]:
    """First token of every sequence; 0 where sequences have an axis of their own."""
    return [0] * batch_size if cu_seqlens is None else cu_seqlens.tolist()


def sequence_view(
    tensor: torch.Tensor, layout: str, b: int, start: int, length: int
) -> torch.Tensor:
    """View ``[N, length, D]`` of one sequence of a dense or packed tensor."""
    if layout == "TND":
        return tensor[start : start + length].transpose(0, 1)
    if layout == "BNSD":
        return tensor[b, :, :length]
    return tensor[b, :length].transpose(0, 1)


def _page_table(
    problem: AttnProblem, block_table: torch.Tensor | None, kv_lens: np.ndarray, num_pages: int
) -> torch.Tensor:
    """Page ids ``[B, pages]``, those that are used checked; empty without pages."""
    if block_table is None:
        return torch.empty((problem.batch_size, 0), dtype=torch.int64)
    table = block_table.cpu()
    check_page_ids(table.numpy(), kv_lens, page_size=problem.page_size, num_pages=num_pages)
    return table.long()


def gather_pages(
    tensor: torch.Tensor, layout: str, pages: torch.Tensor, length: int
) -> torch.Tensor:
    """Gather one sequence ``[N, length, D]`` out of the pages of a cache."""
    gathered = tensor[pages]
    if layout == "PA_BBND":
        sequence = gathered.permute(2, 0, 1, 3)
    elif layout == "PA_BNBD":
        sequence = gathered.permute(1, 0, 2, 3)
    else:
        # [n, N, D/16, page, 16] -> [N, n, page, D/16, 16]
        sequence = gathered.permute(1, 0, 3, 2, 4).flatten(3)
    return sequence.flatten(1, 2)[:, :length]
