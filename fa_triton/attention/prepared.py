"""What a call and its plan decide together, once for all calls that are alike."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fa_triton.attention.metadata import check_belongs
from fa_triton.attention.plans import tile_for
from fa_triton.attention.rows import RowUnits, row_units
from fa_triton.attention.tiles import (
    dtype_class,
    fit_to_pages,
    fit_to_plan,
    padded_dims,
    tile_device,
)
from fa_triton.attention.variants import combine_form, forward_form
from fa_triton.device import device_info
from fa_triton.kernel_form import KernelForm
from fa_triton.planner.table import Header
from fa_triton.problem import AttnProblem
from fa_triton.tile_config import TileConfig


@dataclass(frozen=True)
class PreparedCall:
    """A problem on its way to the kernels.

    Attributes:
        problem: The validated call.
        header: Header of its plan.
        units: How the kernels address rows.
        tile: Tiles that divide the plan's blocks.
        forward: Form of the forward kernel.
        combine: Form of the combine kernel.
        columns: Columns of a tile of v, and of a row of the workspace.
        logit_scale: Factor on q·k in the kernel: twice over the soft cap where there is one.
        needs_fill: Whether some row of the result may lie in no row block that the plan visits.
    """

    problem: AttnProblem
    header: Header
    units: RowUnits
    tile: TileConfig
    forward: KernelForm
    combine: KernelForm
    columns: int
    logit_scale: float
    needs_fill: bool


@functools.lru_cache(maxsize=512)
def prepare(problem: AttnProblem, header: Header) -> PreparedCall:
    """Choose rows, tiles and kernel forms."""
    units = row_units(problem, header)
    rows = header.longest_q * units.kernel_group
    tile = tile_for(problem, problem.device, dtype_class(problem.dtype), rows)
    device = tile_device(device_info(problem.device))
    if problem.is_paged:
        tile, step = fit_to_pages(tile, header, device, problem.page_size)
    else:
        tile = fit_to_plan(tile, header, device)
        step = tile.block_kv
    return PreparedCall(
        problem=problem,
        header=header,
        units=units,
        tile=tile,
        forward=forward_form(problem, header, units, tile, step),
        combine=combine_form(problem, header, units, tile),
        columns=padded_dims(problem.head_dim, problem.head_dim_v)[1],
        logit_scale=problem.softmax_scale * (2 / problem.softcap if problem.softcap else 1),
        needs_fill=_rows_may_stay_unvisited(problem),
    )


@functools.lru_cache(maxsize=512)
def prepare_for_table(problem: AttnProblem, header: Header) -> PreparedCall:
    """Prepare a call that brings its table, once that is found to belong to it.

    Raises:
        ValueError: The table of another problem.
    """
    check_belongs(problem, header)
    return prepare(problem, header)


def _rows_may_stay_unvisited(problem: AttnProblem) -> bool:
    """Whether there may be padding behind actual lengths, or rows without a visible key."""
    lengths_are_tensors = (
        problem.has_cu_seqlens_q
        or problem.has_cu_seqlens_kv
        or problem.has_seqused_q
        or problem.has_seqused_kv
    )
    right = problem.window[1]
    return lengths_are_tensors or (right >= 0 and problem.seqlen_kv - problem.seqlen_q + right < 0)
