"""From host lengths to the plan table on the device."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fa_triton.attention.metadata import KnownHeader, PlannedCall
from fa_triton.attention.rows import INVARIANT_ROWS, merged_rows, plans_one_head
from fa_triton.attention.tiles import (
    fractal_tile,
    integer_tile,
    kv_step,
    loads_fractals,
    logit_steps,
    mask_class,
    tile_device,
    tile_dim,
)
from fa_triton.device import device_info
from fa_triton.planner import AttnWork, make_plan
from fa_triton.planner.table import encode, read_header
from fa_triton.problem import AttnProblem
from fa_triton.tile_config import TileConfig, TileKey, choose_tile

if TYPE_CHECKING:
    from fa_triton.problem import BatchProblem
    from fa_triton.tile_config import DtypeClass
    from fa_triton.validation import HostLengths

_KEPT_PLANS = 64


@dataclass(frozen=True)
class PlanOptions:
    """How to plan: planner, cores and block sizes; None takes the device's or the tile's."""

    planner: str = "balanced"
    num_aic: int | None = None
    num_aiv: int | None = None
    block_q: int | None = None
    block_kv: int | None = None


_recent: OrderedDict[tuple[object, ...], PlannedCall] = OrderedDict()
_recent_lock = threading.Lock()


def plan_call(
    problem: BatchProblem,
    lengths: HostLengths,
    device: torch.device,
    dtype: DtypeClass = "16bit",
    options: PlanOptions | None = None,
) -> PlannedCall:
    """Plan a batch, or take the plan of an equal batch from a small cache.

    Args:
        problem: The validated call.
        lengths: Lengths on the host; upper bounds are fine.
        device: Where the table goes.
        dtype: Class of the input dtype, which the tiles depend on.
        options: Planner, cores, block sizes.
    """
    options = options or PlanOptions()
    info = device_info(device)
    num_aic = options.num_aic or info.num_aic
    num_aiv = options.num_aiv or (2 * num_aic if options.num_aic else info.num_aiv)
    key = (
        *_identity(problem),
        dtype,
        device,
        num_aic,
        num_aiv,
        options,
        lengths.q.tobytes(),
        lengths.kv.tobytes(),
        lengths.are_bounds,
    )
    with _recent_lock:
        planned = _recent.get(key)
        # the caller of flash_attn_metadata holds the table and may have written to it
        if planned is not None and KnownHeader.of(planned.table) is not None:
            _recent.move_to_end(key)
            return planned
    planned = _plan(problem, lengths, device, dtype, options, num_aic, num_aiv)
    with _recent_lock:
        _recent[key] = planned
        if len(_recent) > _KEPT_PLANS:
            _recent.popitem(last=False)
    return planned


def tile_for(
    problem: BatchProblem, device: torch.device, dtype: DtypeClass, rows: int
) -> TileConfig:
    """Tiles of a problem whose longest head unit has ``rows`` rows.

    A batch-invariant problem ignores them: they depend on other sequences.
    """
    if problem.batch_invariant:
        rows = INVARIANT_ROWS
    dim, family = tile_dim(problem), tile_device(device_info(device))
    tile = choose_tile(
        TileKey(
            family,
            dim,
            dtype,
            mask_class(problem),
            rows,
            logit_steps(problem),
        )
    )
    if isinstance(problem, AttnProblem) and problem.cache.is_integer:
        tile = integer_tile(tile, dim, logit_steps(problem))
    if problem.layout_kv == "PA_NZ" and loads_fractals(family):
        return fractal_tile(tile, dim, dtype)
    return tile


def _plan(
    problem: BatchProblem,
    lengths: HostLengths,
    device: torch.device,
    dtype: DtypeClass,
    options: PlanOptions,
    num_aic: int,
    num_aiv: int,
) -> PlannedCall:
    q_lens = lengths.q
    work = AttnWork(
        q_lens=q_lens,
        kv_lens=lengths.kv,
        num_heads_q=problem.num_heads_q,
        num_heads_kv=problem.num_heads_kv,
        head_dim=problem.head_dim,
        mask_mode=problem.mask_mode,
        win_left=problem.win_left,
        win_right=problem.win_right,
        layout_q=problem.layout_q,
        layout_out=problem.layout_out,
        max_seqlen_q=problem.max_seqlen_q,
        max_seqlen_kv=problem.max_seqlen_kv,
    )
    block_q, block_kv, one_head = options.block_q, options.block_kv, False
    if options.planner == "balanced":
        tile = tile_for(problem, device, dtype, merged_rows(problem, q_lens))
        block_q = block_q or tile.block_q
        block_kv = block_kv or _key_block(tile.block_kv, problem.page_size)
        one_head = plans_one_head(problem, q_lens, block_q)
    plan = make_plan(
        options.planner,
        work,
        num_aic=num_aic,
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head,
        batch_invariant=problem.batch_invariant,
        from_bounds=lengths.are_bounds,
    )
    words = encode(plan)
    # an inference tensor would not count the writes to it
    with torch.inference_mode(False):
        table = torch.from_numpy(words).to(device)
    header = read_header(words)
    KnownHeader.remember(table, header)
    return PlannedCall(table, header)


def _key_block(tile_kv: int, page_size: int) -> int:
    """Keys of a plan block: on pages a multiple of the keys that a kernel takes at once."""
    if not page_size:
        return tile_kv
    step = kv_step(page_size, tile_kv)
    return step * max(1, tile_kv // step)


def _identity(problem: BatchProblem) -> tuple[object, ...]:
    """What a plan depends on besides the lengths."""
    return (
        problem.batch_size,
        problem.num_heads_q,
        problem.num_heads_kv,
        problem.head_dim,
        problem.mask_mode,
        problem.win_left,
        problem.win_right,
        problem.layout_q,
        problem.layout_out,
        problem.max_seqlen_q,
        problem.max_seqlen_kv,
        problem.page_size,
        problem.batch_invariant,
    )
