"""Attention of a layer over a planned batch: what an engine's backend calls in every layer.

The first layer of a batch is validated and prepared, the others of its form find that done: a call
then is strides, a few allocations and the launches. On the CPU it is less, where one launch is all:
that one is repeated with other addresses.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from fa_triton.attention.calls import attend
from fa_triton.attention.kernels import (
    CacheTensors,
    HeadTensors,
    KeyTensors,
    Lengths,
    run_attention,
)
from fa_triton.attention.known_problems import problem_of
from fa_triton.attention.prepared import prepare
from fa_triton.attention.value_checks import check_values
from fa_triton.device import cpu_mode
from fa_triton.problem import PER_TOKEN, AttnOptions, AttnProblem, CacheForm
from fa_triton.validation import check_is_tensor, value_checks_enabled
from fa_triton.vllm.batch import (
    LAYOUT_KV,
    LAYOUT_Q,
    AttnBatch,
    BatchPart,
    PlanForm,
    ReadyCall,
    mask_of,
    plan_of,
)
from fa_triton.vllm.cache_views import CachePages
from fa_triton.vllm.identity import identity, tensor_form
from fa_triton.vllm.support import INT8_DTYPES

_CALLS_ATTRIBUTE = "_fa_triton_calls"
_KEPT_CALLS = 256


@dataclass(frozen=True, kw_only=True)
class LayerForm:
    """An attention layer without its tensors.

    Attributes:
        num_heads_q: Query heads of this rank.
        num_heads_kv: Key/value heads of this rank.
        head_dim: Head dimension of q and k.
        softmax_scale: Factor on q·k.
        win_left: Visible keys left of the own one, -1 unlimited.
        softcap: Bound of the logits, 0 for none.
        lse_includes_sink: Whether a log-sum-exp counts the sinks.
        batch_invariant: Whether a sequence's result must not depend on the rest of the batch.
    """

    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    softmax_scale: float
    win_left: int = -1
    softcap: float = 0.0
    lse_includes_sink: bool = False
    batch_invariant: bool = False

    @functools.cached_property
    def identity(self) -> Hashable:
        """The same object for all layers that are equal."""
        return identity(self)

    def plan_form(self, page_size: int, dtype: torch.dtype) -> PlanForm:
        """What the plan of this layer's batches depends on."""
        return PlanForm(
            num_heads_q=self.num_heads_q,
            num_heads_kv=self.num_heads_kv,
            head_dim=self.head_dim,
            page_size=page_size,
            dtype=dtype,
            win_left=self.win_left,
            batch_invariant=self.batch_invariant,
        )


def window_left(sliding_window: int | None) -> int:
    """``win_left`` of a layer that sees ``sliding_window`` keys, its own one included.

    The engines' names of no window are None, -1 and 0.
    """
    return -1 if sliding_window is None or sliding_window <= 0 else sliding_window - 1


def attend_batch(
    layer: LayerForm,
    batch: AttnBatch,
    q: torch.Tensor,
    pages: CachePages,
    out: torch.Tensor,
    *,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> None:
    """Attend the queries of a batch to its pages.

    Args:
        layer: The layer.
        batch: The batch; its plan is made if the builder did not know this form.
        q: Queries ``[T, Nq, D]``, T at least ``batch.num_tokens``: rows behind are padding.
        pages: Keys and values in dtype of q, or int8 with scales; the new tokens written.
        out: Result ``[T, Nq, Dv]``, written up to ``batch.num_tokens``; padding is left as it is.
        sinks: One logit per query head ``[Nq]``, fp32, that joins the denominator.
        alibi_slopes: One slope per query head ``[Nq]``, fp32.
        lse: Where the log-sum-exp goes, ``[Nq, T]`` fp32, natural log; None if it is not wanted.

    Raises:
        ValueError, TypeError: Tensors that ``flash_attn`` would refuse.
        NotImplementedError: A window in a batch without a causal mask.

    Notes:
        Host sync: none. Mutates ``out`` and ``lse``. Every row of a part belongs to a sequence, so
        nothing is cleared first. Source: vLLM ``AttentionImpl.forward``.
    """
    for part in batch.parts:
        if part.num_tokens == q.shape[0]:
            _attend_part(layer, part, q, pages, out, sinks, alibi_slopes, lse)
            continue
        rows = slice(part.first_token, part.first_token + part.num_tokens)
        part_lse = None if lse is None else lse[:, rows]
        _attend_part(layer, part, q[rows], pages, out[rows], sinks, alibi_slopes, part_lse)


def _attend_part(
    layer: LayerForm,
    part: BatchPart,
    q: torch.Tensor,
    pages: CachePages,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    lse: torch.Tensor | None,
) -> None:
    key = _call_key(layer, q, pages, out, sinks, alibi_slopes, lse)
    ready = part.calls.get(key)
    mode = cpu_mode() if q.is_cpu else None
    if (
        mode == "native"
        and ready is not None
        and ready.launch is not None
        and ready.launch.launch(_addresses(part, q, pages, out, lse))
    ):
        return
    heads = HeadTensors(sinks, alibi_slopes)
    if ready is None:
        for name, written in (("out", out), ("lse", lse)):
            if written is not None:
                check_is_tensor(name, written)
        ready = _ready(key, layer, part, q, pages, out, heads, lse is not None)
        _keep(part.calls, key, ready)
    if mode == "reference":
        _attend_by_reference(layer, part, q, pages, out, heads, lse)
        return
    repeat = run_attention(
        q,
        KeyTensors(pages.k, pages.v, part.block_table),
        heads,
        Lengths(part.query_start_loc, None, None, part.seq_lens),
        out,
        lse,
        ready.table,
        ready.call,
        None if pages.scales is None else CacheTensors(scale=pages.scales),
    )
    if repeat is not None and ready.launch is None:
        ready.repeat_as(repeat)


def _call_key(
    layer: LayerForm,
    q: torch.Tensor,
    pages: CachePages,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    lse: torch.Tensor | None,
) -> tuple[Hashable, ...]:
    """All that decides about a layer's call for a part besides addresses."""
    return (
        layer.identity,
        pages.form,
        tensor_form(q),
        tensor_form(out),
        None if sinks is None else tensor_form(sinks),
        None if alibi_slopes is None else tensor_form(alibi_slopes),
        None if lse is None else tensor_form(lse),
    )


def _addresses(
    part: BatchPart,
    q: torch.Tensor,
    pages: CachePages,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> dict[str, int]:
    """Where the tensors of a launch lie that a repetition exchanges, by the kernel's names."""
    addresses = {
        "q": q.data_ptr(),
        "k": pages.k.data_ptr(),
        "v": pages.v.data_ptr(),
        "block_table": part.block_table.data_ptr(),
        "cu_seqlens_q": part.query_start_loc.data_ptr(),
        "seqused_kv": part.seq_lens.data_ptr(),
        "out": out.data_ptr(),
    }
    if lse is not None:
        addresses["softmax_lse"] = lse.data_ptr()
    return addresses | pages.scale_addresses()


def _ready(
    key: tuple[Hashable, ...],
    layer: LayerForm,
    part: BatchPart,
    q: torch.Tensor,
    pages: CachePages,
    out: torch.Tensor,
    heads: HeadTensors,
    wants_lse: bool,
) -> ReadyCall:
    """Prepare a call, or find it with the plan that an earlier batch shares."""
    planned = plan_of(part, layer.plan_form(pages.k.shape[2], q.dtype))
    calls = _calls_with(planned.table)
    key = (*key, *part.tensor_forms())
    ready = calls.get(key)
    if ready is None:
        # validated as the call of `flash_attn` that it is
        problem = _problem_of(q, pages, _options(layer, part, heads, wants_lse))
        if out.shape != (*q.shape[:2], pages.v.shape[3]):
            raise ValueError(
                f"`out` must be [{q.shape[0]}, {q.shape[1]}, {pages.v.shape[3]}], got shape "
                f"{tuple(out.shape)}"
            )
        # every row belongs to a sequence and sees its own key
        call = dataclasses.replace(prepare(problem, planned.header), needs_fill=False)
        ready = ReadyCall(call, planned.table)
        _keep(calls, key, ready)
    if value_checks_enabled():
        lengths = Lengths(part.query_start_loc, None, None, part.seq_lens)
        check_values(ready.call.problem, lengths, pages.k, part.block_table, planned.table)
    return ready


def _keep(calls: dict[Hashable, ReadyCall], key: Hashable, ready: ReadyCall) -> None:
    if len(calls) >= _KEPT_CALLS:
        calls.clear()
    calls[key] = ready


def _calls_with(table: torch.Tensor) -> dict[Hashable, ReadyCall]:
    """Calls that were prepared for a plan; they live as long as its table."""
    calls = getattr(table, _CALLS_ATTRIBUTE, None)
    if calls is None:
        calls = {}
        setattr(table, _CALLS_ATTRIBUTE, calls)
    return calls


def _problem_of(q: torch.Tensor, pages: CachePages, options: AttnOptions) -> AttnProblem:
    if pages.scales is None:
        return problem_of(q, pages.k, pages.v, options)
    if pages.k.dtype != torch.int8 or pages.v.dtype != torch.int8:
        raise TypeError(f"pages with scales must be int8, got {pages.k.dtype} and {pages.v.dtype}")
    if q.dtype not in INT8_DTYPES:
        raise TypeError(f"`q` must be fp16 or bf16 with a cache of eight bits, got {q.dtype}")
    # the same call over keys and values in the dtype of q, of which only the form is looked at
    k, v = (q.new_empty(side.shape[-1]).expand(side.shape) for side in (pages.k, pages.v))
    problem = problem_of(q, k, v, options)
    return dataclasses.replace(problem, cache=CacheForm(scales=PER_TOKEN))


def _options(layer: LayerForm, part: BatchPart, heads: HeadTensors, wants_lse: bool) -> AttnOptions:
    mask_mode, win_left, win_right = mask_of(layer.win_left, part.is_causal)
    return {
        "block_table": part.block_table,
        "cu_seqlens_q": part.query_start_loc,
        "seqused_kv": part.seq_lens,
        "sinks": heads.sinks,
        "alibi_slopes": heads.alibi_slopes,
        "softmax_scale": layer.softmax_scale,
        "softcap": layer.softcap,
        "mask_mode": mask_mode,
        "win_left": win_left,
        "win_right": win_right,
        "layout_q": LAYOUT_Q,
        "layout_kv": LAYOUT_KV,
        "layout_out": LAYOUT_Q,
        "return_softmax_lse": wants_lse,
        "lse_includes_sink": layer.lse_includes_sink,
        "batch_invariant": layer.batch_invariant,
    }


def _attend_by_reference(
    layer: LayerForm,
    part: BatchPart,
    q: torch.Tensor,
    pages: CachePages,
    out: torch.Tensor,
    heads: HeadTensors,
    lse: torch.Tensor | None,
) -> None:
    k, v = pages.k, pages.v
    if pages.scales is not None:
        k, v = (side * scale[..., None] for side, scale in zip((k, v), pages.scales, strict=True))
    options = _options(layer, part, heads, lse is not None)
    result, log_sums = attend(q, k.to(q.dtype), v.to(q.dtype), **options)
    out.copy_(result)
    if lse is not None:
        lse.copy_(log_sums)
