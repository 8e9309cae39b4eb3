"""A batch of the engine as the kernels take it: planned once, shared by all layers of its group.

The plan is made from what the host knows, lengths or upper bounds of them; the kernels read the
lengths from the device and clamp. The sequences of a batch are split where short queries (decode,
speculative tokens) and long ones meet: a plan of short queries alone takes small row tiles and
reads q where it lies, one that mixes them with long ones would not.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from fa_triton.attention.metadata import KnownHeader
from fa_triton.attention.plans import plan_call
from fa_triton.attention.tiles import dtype_class
from fa_triton.device import device_info
from fa_triton.validation import HostLengths, validate_metadata, value_checks_enabled
from fa_triton.vllm.identity import tensor_form

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fa_triton.attention.metadata import PlannedCall
    from fa_triton.attention.prepared import PreparedCall
    from fa_triton.attention.repeats import Repeat
    from fa_triton.native.kernel import BoundLaunch
    from fa_triton.problem import MetadataProblem

# Plans of short queries are made for key lengths rounded up to so many keys. They are right for all
# lengths below, and a decode step mostly finds the plan of the step before it.
PLANNED_KEYS = 128
_KEPT_STEPS = 64
# A part is a launch: where short and long queries alternate more often, a plan mixes them.
MAX_PARTS = 4
LAYOUT_Q = "TND"
LAYOUT_KV = "PA_BNBD"
NO_MASK, CAUSAL, WINDOW = 0, 3, 4


@dataclass(frozen=True, kw_only=True)
class PlanForm:
    """What a plan depends on besides lengths and mask; equal for most layers of a group.

    Attributes:
        num_heads_q: Query heads of this rank.
        num_heads_kv: Key/value heads of this rank.
        head_dim: Head dimension of q and k.
        page_size: Tokens of a page of the cache.
        dtype: Of q, k and v.
        win_left: Visible keys left of the own one, -1 unlimited.
        batch_invariant: Whether a sequence's result must not depend on the rest of the batch.
    """

    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    win_left: int = -1
    batch_invariant: bool = False


@dataclass(eq=False)
class ReadyCall:
    """A prepared call and the table of its plan.

    Attributes:
        call: The prepared call.
        table: The table of the plan.
        launch: The launch that repeats the call with other tensors of its form, once there is one.
    """

    call: PreparedCall
    table: torch.Tensor
    launch: BoundLaunch | None = None
    _repeat: Repeat | None = None

    def repeat_as(self, repeat: Repeat) -> None:
        """Repeat a launch from now on, with the plan and the workspace that live as long."""
        work = repeat.work
        own = {"plan": self.table, "part_acc": work.acc, "part_max": work.max, "part_sum": work.sum}
        self.launch = repeat.launch.fix({name: each.data_ptr() for name, each in own.items()})
        self._repeat = repeat


@dataclass(frozen=True, eq=False)
class BatchPart:
    """Consecutive sequences that one plan serves.

    Attributes:
        first_token: First row of its queries in the batch.
        num_tokens: Rows of its queries.
        query_start_loc: ``[B + 1]`` int32 on the device, from 0 on.
        seq_lens: ``[B]`` int32 on the device: keys of each sequence, new tokens included.
        block_table: ``[B, pages]`` int32 on the device.
        lengths: Query and key lengths on the host, or bounds of them.
        is_causal: Whether a token sees no later ones.
        plans: By form; :func:`plan_of` adds what is missing.
        calls: Prepared calls by whatever decides about them, see ``attention.py``.
    """

    first_token: int
    num_tokens: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    lengths: HostLengths
    is_causal: bool
    plans: dict[PlanForm, PlannedCall] = field(default_factory=dict)
    calls: dict[Hashable, ReadyCall] = field(default_factory=dict)

    def tensor_forms(self) -> tuple[Hashable, ...]:
        """What the tensors are besides addresses."""
        tensors = (self.query_start_loc, self.seq_lens, self.block_table)
        return tuple(map(tensor_form, tensors))


@dataclass(frozen=True, eq=False)
class AttnBatch:
    """One step of the engine for the layers of a KV cache group.

    Attributes:
        num_tokens: Query tokens; rows behind them are padding.
        parts: Its sequences in order.
    """

    num_tokens: int
    parts: tuple[BatchPart, ...]


@dataclass(frozen=True, eq=False)
class _KnownStep:
    """A step of short queries alone, which is one part, without its tensors."""

    num_tokens: int
    lengths: HostLengths
    plans: dict[PlanForm, PlannedCall]
    calls: dict[Hashable, ReadyCall]

    def is_intact(self) -> bool:
        """Whether nobody wrote to the plans, which ``flash_attn_metadata`` may have handed out."""
        return all(KnownHeader.of(planned.table) is not None for planned in self.plans.values())


class KnownSteps:
    """Steps of short queries that a builder described, for the steps that equal them.

    Decode mostly makes the same step again: the same sequences, each with as many blocks of
    :data:`PLANNED_KEYS` keys. Plan and prepared calls are those of the first such step.
    """

    def __init__(self) -> None:
        self._steps: OrderedDict[Hashable, _KnownStep] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    def find(self, key: Hashable) -> _KnownStep | None:
        """The step of a key; None if there is none, or if its plans were written to."""
        step = self._steps.get(key)
        if step is None or not step.is_intact():
            return None
        self._steps.move_to_end(key)
        return step

    def keep(self, key: Hashable, part: BatchPart) -> None:
        """Keep a step, and forget the one that was asked for longest ago."""
        self._steps[key] = _KnownStep(part.num_tokens, part.lengths, part.plans, part.calls)
        if len(self._steps) > _KEPT_STEPS:
            self._steps.popitem(last=False)


def make_batch(
    *,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    host_query_start_loc: np.ndarray,
    host_seq_lens: np.ndarray,
    are_bounds: bool,
    num_tokens: int,
    forms: Iterable[PlanForm],
    is_causal: bool = True,
    longest_short: int = 1,
    known: KnownSteps | None = None,
) -> AttnBatch:
    """Describe and plan a batch.

    Args:
        query_start_loc: ``[B + 1]`` int32 on the device, starts of the queries.
        seq_lens: ``[B]`` int32 on the device, keys of each sequence, new tokens included.
        block_table: ``[B, pages]`` int32 on the device.
        host_query_start_loc: ``[B + 1]``, the same as ``query_start_loc``.
        host_seq_lens: ``[B]``, the same as ``seq_lens`` or upper bounds.
        are_bounds: Whether the device may find shorter sequences.
        num_tokens: Query tokens, padding of a graph included.
        forms: What to plan for; forms that turn up later are planned at the first call.
        is_causal: Whether a token sees no later ones.
        longest_short: Queries up to this length are planned apart from longer ones.
        known: Steps before this one, which it may equal.

    Returns:
        The batch, which keeps the tensors: their values may change, their memory may not.

    Notes:
        Host sync: none. Source: vLLM ``CommonAttentionMetadata``.
    """
    key = None
    if known is not None:
        key = _step_key(
            host_query_start_loc,
            host_seq_lens,
            (are_bounds, is_causal, longest_short),
            (query_start_loc, seq_lens, block_table),
        )
        step = known.find(key)
        if step is not None:
            part = BatchPart(
                first_token=0,
                num_tokens=step.num_tokens,
                query_start_loc=query_start_loc,
                seq_lens=seq_lens,
                block_table=block_table,
                lengths=step.lengths,
                is_causal=is_causal,
                plans=step.plans,
                # values are checked at the first call of every batch
                calls={} if value_checks_enabled() else step.calls,
            )
            for form in forms:
                plan_of(part, form)
            return AttnBatch(num_tokens, (part,))
    starts = host_query_start_loc.astype(np.int64, copy=False)
    count = starts.size - 1
    q_lens = np.diff(starts)
    kv_lens = host_seq_lens.astype(np.int64, copy=False)
    parts = []
    for first, last in _ranges(q_lens, longest_short):
        begin, end = int(starts[first]), int(starts[last])
        if begin == end:
            continue
        whole = first == 0 and last == count
        planned = kv_lens[first:last]
        if int(q_lens[first:last].max()) <= longest_short:
            planned = _planned_blocks(planned) * PLANNED_KEYS
        part_starts = query_start_loc if whole else query_start_loc[first : last + 1]
        parts.append(
            BatchPart(
                first_token=begin,
                num_tokens=end - begin,
                query_start_loc=part_starts - begin if begin else part_starts,
                seq_lens=seq_lens if whole else seq_lens[first:last],
                block_table=block_table if whole else block_table[first:last],
                lengths=HostLengths(q_lens[first:last], planned, are_bounds),
                is_causal=is_causal,
            )
        )
    batch = AttnBatch(num_tokens, tuple(parts))
    for form in forms:
        for part in batch.parts:
            plan_of(part, form)
    if known is not None and len(parts) == 1 and int(q_lens.max()) <= longest_short:
        known.keep(key, parts[0])
    return batch


def _step_key(
    host_query_start_loc: np.ndarray,
    host_seq_lens: np.ndarray,
    options: tuple[Hashable, ...],
    tensors: tuple[torch.Tensor, ...],
) -> tuple[Hashable, ...]:
    """All that decides about a step of short queries besides layers, addresses and values."""
    info = device_info(tensors[0].device)
    return (
        host_query_start_loc.tobytes(),
        _planned_blocks(host_seq_lens).tobytes(),
        info.num_aic,
        info.num_aiv,
        *options,
        *map(tensor_form, tensors),
    )


def _planned_blocks(key_lengths: np.ndarray) -> np.ndarray:
    """Blocks of keys that a plan of short queries is made for."""
    return (key_lengths + (PLANNED_KEYS - 1)) // PLANNED_KEYS


def plan_of(part: BatchPart, form: PlanForm) -> PlannedCall:
    """The plan of a part for layers of a form, made at the first request."""
    planned = part.plans.get(form)
    if planned is None:
        problem = _plan_problem(form, part.lengths.q.size, part.is_causal)
        device = part.seq_lens.device
        planned = plan_call(problem, part.lengths, device, dtype_class(form.dtype))
        part.plans[form] = planned
    return planned


def mask_of(win_left: int, is_causal: bool) -> tuple[int, int, int]:
    """``mask_mode``, ``win_left`` and ``win_right`` of ``flash_attn``.

    Args:
        win_left: Visible keys left of the own one, -1 unlimited.
        is_causal: Whether a token sees no later ones.

    Raises:
        NotImplementedError: A window without a causal mask.
    """
    if win_left < 0:
        return (CAUSAL if is_causal else NO_MASK), -1, -1
    if not is_causal:
        raise NotImplementedError("`sliding_window` must be None without a causal mask, got one")
    return WINDOW, win_left, 0


def _ranges(q_lens: np.ndarray, longest_short: int) -> list[tuple[int, int]]:
    """Ranges of sequences that are short or long alike; the last one may mix them."""
    long = q_lens > longest_short
    cuts = (np.flatnonzero(long[1:] != long[:-1]) + 1).tolist()
    ends = [*cuts[: MAX_PARTS - 1], q_lens.size]
    return [(first, last) for first, last in zip([0, *ends], ends, strict=False) if last > first]


@functools.lru_cache(maxsize=1024)
def _plan_problem(form: PlanForm, batch_size: int, is_causal: bool) -> MetadataProblem:
    lengths = torch.empty(batch_size + 1, dtype=torch.int32)
    mask_mode, win_left, win_right = mask_of(form.win_left, is_causal)
    return validate_metadata(
        form.num_heads_q,
        form.num_heads_kv,
        form.head_dim,
        cu_seqlens_q=lengths,
        seqused_kv=lengths[1:],
        page_size=form.page_size,
        layout_q=LAYOUT_Q,
        layout_kv=LAYOUT_KV,
        layout_out=LAYOUT_Q,
        batch_invariant=form.batch_invariant,
        mask_mode=mask_mode,
        win_left=win_left,
        win_right=win_right,
    )
