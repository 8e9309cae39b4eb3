"""Eager float64 attention for every argument of ``incre_flash_attention``: the oracle of the tests.

Unlike the kernels it has no tiles, no plan and no second call for a prefix: the keys and values of
one sequence are gathered into a dense tensor, and one softmax is taken over all of them. With
``emulate`` it rounds what a kernel must store, nothing else: the weights before they meet V, q
where a scale per channel joins it, and the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fa_triton.incremental_attention.views import (
    antiquant_table,
    bias_view,
    cache_views,
    mask_view,
    output_quant_view,
    query_view,
)
from fa_triton.reference import (
    gather_pages,
    hidden_by_window,
    sequence_view,
    softmax_weights,
)
from fa_triton.validation.antiquant import PER_TOKEN
from fa_triton.validation.incremental import validate_incre_flash_attention
from fa_triton.validation.incremental_lengths import own_keys, resolve_actual_lengths
from fa_triton.validation.optional_tensors import as_given
from fa_triton.validation.page_values import check_page_ids

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.incremental_problem import Cache, IncreOptions, IncreProblem

INT8_LIMITS = (-128.0, 127.0)


def incre_flash_attention_reference(
    query: torch.Tensor,
    key: Cache,
    value: Cache,
    *,
    out_dtype: torch.dtype | None = None,
    emulate: bool = False,
    **options: Unpack[IncreOptions],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend in float64, with the contract of ``incre_flash_attention``.

    Args:
        query: Queries in ``input_layout``.
        key: Keys: a tensor, a list or pages.
        value: Values, as the keys.
        out_dtype: Of the result; None is what the call asks for. With float64 the log-sum-exp is
            float64 too, and an int8 result is scaled and saturated but not rounded.
        emulate: Whether what a kernel must store is rounded to the query's dtype.
        **options: Keyword arguments of ``incre_flash_attention``; a plan is not used.

    Returns:
        The result in the shape of the query; the log-sum-exp ``[B, N, Sq]``, natural log, whether
        it is asked for or not. Rows without a visible key are 0 (before the quantisation) and +inf.

    Raises:
        ValueError, TypeError, NotImplementedError: As ``incre_flash_attention``, and for values of
            lengths and page ids.

    Notes: Reads lengths, padding and pages on the host.
    """
    problem = validate_incre_flash_attention(query, key, value, **options)
    device = query.device
    # An NPU has no float64.
    place = device if device.type in ("cpu", "cuda") else torch.device("cpu")
    call = _Call.read(problem, query, key, value, options, place)
    attn = problem.attn
    batch, heads, tokens = attn.batch_size, attn.num_heads_q, attn.seqlen_q
    out = torch.zeros(attn.out_shape, dtype=torch.float64, device=place)
    lse = torch.empty((batch, heads, tokens), dtype=torch.float64, device=place)
    storage = attn.dtype if emulate else torch.float64
    for b in range(batch):
        sequence = call.sequence(b)
        rows = sequence_view(call.query, attn.layout_q, b, 0, tokens).double()
        b_out, lse[b] = _attend_sequence(problem, rows, sequence, call.sinks, storage)
        sequence_view(out, attn.layout_out, b, 0, tokens).copy_(b_out)
    wanted = problem.out_dtype if out_dtype is None else out_dtype
    if problem.output_quant is not None:
        out = call.quantise(out, is_rounded=wanted == torch.int8)
    elif emulate:
        out = out.to(attn.dtype)
    lse_dtype = torch.float64 if wanted == torch.float64 else torch.float32
    return out.to(wanted).reshape(query.shape).to(device), lse.to(lse_dtype).to(device)


@dataclass(frozen=True, eq=False)
class _Sequence:
    """Keys of one sequence, the shared prefix first.

    Attributes:
        keys: ``[Nkv, keys, D]``, float64; stored integers with their offsets added.
        values: Likewise.
        key_scale: Of stored integers, ``[Nkv, 1, D]`` per channel, ``[Nkv or 1, keys, 1]`` per
            token; None where the numbers are what they are.
        value_scale: Likewise.
        is_scaled_per_token: Which of the two forms it is.
        bias: ``[N, Sq, keys]`` or None.
        hidden: Keys that the mask hides ``[N, Sq, keys]``, bool, or None.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scale: torch.Tensor | None
    value_scale: torch.Tensor | None
    is_scaled_per_token: bool
    bias: torch.Tensor | None
    hidden: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class _Call:
    """Tensors of a call in one form each, and what the host must know of their values."""

    problem: IncreProblem
    query: torch.Tensor
    caches: tuple[list[torch.Tensor], list[torch.Tensor]]
    prefixes: list[torch.Tensor]
    spans: list[tuple[int, int]]
    block_table: torch.Tensor | None
    scales: torch.Tensor | None
    offsets: torch.Tensor | None
    mask: torch.Tensor | None
    bias: torch.Tensor | None
    sinks: torch.Tensor | None
    quant_scale2: torch.Tensor | None
    quant_offset2: torch.Tensor | None

    @classmethod
    def read(
        cls,
        problem: IncreProblem,
        query: torch.Tensor,
        key: Cache,
        value: Cache,
        options: IncreOptions,
        place: torch.device,
    ) -> _Call:
        """Bring the arguments of a validated call into one form each, on a device with float64."""

        def tensor(name: str) -> torch.Tensor | None:
            given: Any = options.get(name)
            found = as_given(name, given)
            return None if found is None else found.to(place)

        def viewed(name: str, view: Any) -> torch.Tensor | None:
            found = tensor(name)
            return None if found is None else view(found, problem)

        given_lengths = options.get("actual_seq_lengths")
        lengths = resolve_actual_lengths(
            problem, given_lengths if isinstance(given_lengths, torch.Tensor) else None
        )
        padding = tensor("kv_padding_size")
        table = tensor("block_table")
        keys = [one.to(place) for one in cache_views(key, problem)]
        values = [one.to(place) for one in cache_views(value, problem)]
        if table is not None:
            _check_pages(problem, table, lengths, keys[0].shape[0])
        prefix = (tensor("key_shared_prefix"), tensor("value_shared_prefix"))
        return cls(
            problem=problem,
            query=query_view(query.to(place), problem),
            caches=(keys, values),
            prefixes=[one[0] for one in prefix if one is not None],
            spans=own_keys(problem, lengths, 0 if padding is None else int(padding.item())),
            block_table=None if table is None else table.long(),
            scales=viewed("antiquant_scale", antiquant_table),
            offsets=viewed("antiquant_offset", antiquant_table),
            mask=viewed("atten_mask", mask_view),
            bias=viewed("pse_shift", bias_view),
            sinks=tensor("sinks"),
            quant_scale2=viewed("quant_scale2", output_quant_view),
            quant_offset2=viewed("quant_offset2", output_quant_view),
        )

    def sequence(self, b: int) -> _Sequence:
        """Gather one sequence."""
        start, length = self.spans[b]
        prefix = self.problem.prefix_length
        columns = torch.cat((torch.arange(prefix), prefix + start + torch.arange(length)))
        columns = columns.to(self.query.device)
        numbers, scales = [], []
        for side in range(2):
            own = self._with_offsets(self._gather(side, b, start, length), side, b, start)
            if self.prefixes:
                shared = self._with_offsets(self.prefixes[side], side, b, None)
                own = torch.cat((shared, own), 1)
            numbers.append(own)
            scale = self.scales
            scales.append(None if scale is None else self._factors(scale, side, b, start, length))
        return _Sequence(
            keys=numbers[0],
            values=numbers[1],
            key_scale=scales[0],
            value_scale=scales[1],
            is_scaled_per_token=self.problem.quant in PER_TOKEN,
            bias=None if self.bias is None else self.bias[b][..., columns].double(),
            hidden=None if self.mask is None else self.mask[b][..., columns] != 0,
        )

    def quantise(self, out: torch.Tensor, *, is_rounded: bool) -> torch.Tensor:
        """Scale a result, half to even where it is rounded, and saturate it."""
        if self.quant_scale2 is not None:
            out = out * self.quant_scale2.double()
        if self.quant_offset2 is not None:
            out = out + self.quant_offset2.double()
        return (out.round() if is_rounded else out).clamp(*INT8_LIMITS)

    def _gather(self, side: int, b: int, start: int, length: int) -> torch.Tensor:
        """Cut ``[Nkv, length, D]`` of one sequence out of the cache."""
        attn, tensors = self.problem.attn, self.caches[side]
        if self.block_table is not None:
            pages = self.block_table[b, : -(-length // attn.page_size)]
            return gather_pages(tensors[0], attn.layout_kv, pages, length)
        tensor, row = (tensors[b], 0) if self.problem.is_list else (tensors[0], b)
        return sequence_view(tensor, attn.layout_kv, row, 0, start + length)[:, start:]

    def _with_offsets(
        self, numbers: torch.Tensor, side: int, b: int, start: int | None
    ) -> torch.Tensor:
        """Add offsets to ``[Nkv, length, D]``; without a start it is the prefix."""
        numbers = numbers.double()
        if self.offsets is not None:
            numbers = numbers + self._factors(self.offsets, side, b, start, numbers.shape[1])
        return numbers

    def _factors(
        self, table: torch.Tensor, side: int, b: int, start: int | None, length: int
    ) -> torch.Tensor:
        """Numbers of a table for the keys of one sequence, to broadcast over [Nkv, length, D]."""
        if self.problem.quant in ("per_tensor", "per_channel") or start is None:
            return table[side][:, None].double()
        if self.block_table is None:
            return table[side, b, :, start : start + length, None].double()
        pages = self.block_table[b, : -(-length // self.problem.attn.page_size)]
        # [pages, heads, page] -> [heads, tokens, 1]
        return table[side, pages].transpose(0, 1).flatten(1)[:, :length, None].double()


def _attend_sequence(
    problem: IncreProblem,
    query: torch.Tensor,
    sequence: _Sequence,
    sinks: torch.Tensor | None,
    storage: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend ``[N, Sq, D]`` to one sequence.

    Returns:
        ``[N, Sq, D]`` and the log-sum-exp ``[N, Sq]``.
    """
    attn = problem.attn
    num_heads, tokens, head_dim = query.shape
    num_keys = sequence.keys.shape[1]
    if num_keys == 0:
        lse = query.new_full((num_heads, tokens), torch.inf)
        if sinks is not None and attn.lse_includes_sink:
            lse[:] = torch.where(sinks == -torch.inf, torch.inf, sinks)[:, None]
        return torch.zeros_like(query), lse
    # Heads of a group share their keys.
    rows = query.reshape(attn.num_heads_kv, attn.group * tokens, head_dim)
    s = _scaled_logits(rows, sequence, storage)
    s = s.reshape(num_heads, tokens, num_keys) * attn.softmax_scale
    if attn.softcap:
        s = attn.softcap * torch.tanh(s / attn.softcap)
    if sequence.bias is not None:
        s = s + sequence.bias
    i_key = torch.arange(num_keys, device=s.device)
    i_row = torch.arange(tokens, device=s.device)
    by_window = hidden_by_window(attn, i_key[None, :] - (i_row[:, None] + num_keys - tokens))
    if by_window is not None:
        s = s.masked_fill(by_window, -torch.inf)
    if sequence.hidden is not None:
        s = s.masked_fill(sequence.hidden, -torch.inf)
    weights, total, lse = softmax_weights(attn, s, sinks)
    if problem.masked_row == "mean" and sequence.hidden is not None:
        masked = sequence.hidden if by_window is None else sequence.hidden & ~by_window
        weights, total = _mean_rows(weights, total, masked, s, sinks)
    weights = weights.reshape(attn.num_heads_kv, attn.group * tokens, num_keys)
    out = _scaled_sums(weights, sequence, storage).reshape(num_heads, tokens, head_dim)
    return out / torch.where(total > 0, total, 1.0)[..., None], lse


def _scaled_logits(rows: torch.Tensor, sequence: _Sequence, storage: torch.dtype) -> torch.Tensor:
    """Return q k: a scale per channel joins the stored q, one per token the logits."""
    scale = sequence.key_scale
    if scale is None:
        return rows @ sequence.keys.mT
    if not sequence.is_scaled_per_token:
        return (rows * scale).to(storage).double() @ sequence.keys.mT
    return (rows @ sequence.keys.mT) * scale.mT


def _scaled_sums(weights: torch.Tensor, sequence: _Sequence, storage: torch.dtype) -> torch.Tensor:
    """Return P V: a scale per token joins the stored P, one per channel the sums."""
    scale = sequence.value_scale
    if scale is None:
        return weights.to(storage).double() @ sequence.values
    if not sequence.is_scaled_per_token:
        return (weights.to(storage).double() @ sequence.values) * scale
    return (weights * scale.mT).to(storage).double() @ sequence.values


def _mean_rows(
    weights: torch.Tensor,
    total: torch.Tensor,
    masked: torch.Tensor,
    s: torch.Tensor,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give rows whose every key the mask hides equal weights; a sink outweighs them all.

    ``masked`` are the keys that position shows and the mask hides, whatever their bias is.
    """
    is_mean = (s == -torch.inf).all(-1)
    if sinks is not None:
        is_mean = is_mean & (sinks == -torch.inf)[:, None]
    weights = torch.where(is_mean[..., None], masked.to(weights.dtype), weights)
    return weights, torch.where(is_mean, masked.sum(-1).to(total.dtype), total)


def _check_pages(
    problem: IncreProblem, table: torch.Tensor, lengths: tuple[int, ...], num_pages: int
) -> None:
    check_page_ids(
        table.cpu().numpy(),
        np.array(lengths, dtype=np.int64),
        page_size=problem.attn.page_size,
        num_pages=num_pages,
    )
