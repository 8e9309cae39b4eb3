"""Pages of fractals (PA_NZ) as pages of rows (PA_BNBD), where the kernels cannot load fractals.

On A2 and A3 the cube core finds the fractals of V in an order that its product does not ask for, so
the keys that a call attends to are copied to rows first; the call then runs as on PA_BNBD.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch

from fa_triton.attention.kernels import KeyTensors
from fa_triton.attention.tiles import kv_step, loads_fractals, padded_dims, tile_device
from fa_triton.device import device_info
from fa_triton.kernel_form import KernelForm, dtype_name
from fa_triton.launch import runner
from fa_triton.layout import strides
from fa_triton.padding import padded

if TYPE_CHECKING:
    from fa_triton.problem import AttnProblem

KERNEL = "unfold_fractals"
ROWS = "PA_BNBD"
# Of a tile of K or V on chip, where 16 elements take a block of 32 bytes at least.
MAX_TILE_BYTES = 16 * 1024
MAX_TILE_KEYS = 128
LEAST_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class UnfoldedKeys:
    """Keys and values in pages of rows.

    Attributes:
        keys: Pages ``[n, Nkv, page, D]`` and the block table that names them; those that no
            sequence attends to hold anything.
        sources: Page of the cache that page ``i`` was copied from ``[n]``, int32, rubbish as it was
            where no sequence uses one; None where pages kept their ids.
    """

    keys: KeyTensors
    sources: torch.Tensor | None


def problem_of_rows(problem: AttnProblem) -> AttnProblem:
    """The problem that the attention kernels get; the same one where they load its layout."""
    if problem.layout_kv != "PA_NZ" or loads_fractals(tile_device(device_info(problem.device))):
        return problem
    return replace(problem, layout_kv=ROWS)


def unfold(
    problem: AttnProblem, keys: KeyTensors, seqused_kv: torch.Tensor | None, longest_q: int
) -> UnfoldedKeys:
    """Copy the keys and values that a call attends to.

    The workspace has as many pages as the cache, which keep their ids, or a page for every entry of
    the block table, whichever is less.

    Args:
        problem: The validated call, on PA_NZ.
        keys: Pages ``[P, Nkv, D/16, page, 16]`` and their block table.
        seqused_kv: Lengths ``[B]``, int32; with pages validation asks for them.
        longest_q: Queries that the plan gives a sequence at most.

    Notes:
        Host sync: none. Reads and writes every key of every sequence once; with a left window
        those on pages that it reaches.
    """
    table = cast("torch.Tensor", keys.block_table)
    batch_size, width = table.shape
    has_own_table = batch_size * width < keys.k.shape[0]
    count = batch_size * width if has_own_table else keys.k.shape[0]
    heads, page_size = problem.num_heads_kv, problem.page_size
    k_rows, v_rows = (
        torch.empty(
            (max(count, 1), heads, page_size, columns), dtype=keys.k.dtype, device=keys.k.device
        )
        for columns in (problem.head_dim, problem.head_dim_v)
    )
    _launch(problem, keys, table, seqused_kv, longest_q, k_rows, v_rows, has_own_table)
    if not has_own_table:
        return UnfoldedKeys(KeyTensors(k_rows, v_rows, table), None)
    own = torch.arange(count, dtype=torch.int32, device=table.device).view(batch_size, width)
    return UnfoldedKeys(KeyTensors(k_rows, v_rows, own), table.reshape(-1))


def most_keys(dtype: torch.dtype, head_dim: int, head_dim_v: int) -> int:
    """Keys of the largest tile."""
    columns, _ = padded_dims(head_dim, head_dim_v)
    element_bytes = max(dtype.itemsize, LEAST_ELEMENT_BYTES)
    return min(MAX_TILE_KEYS, MAX_TILE_BYTES // (columns * element_bytes))


@functools.lru_cache(maxsize=256)
def unfold_form(dtype: torch.dtype, head_dim: int, head_dim_v: int, step: int) -> KernelForm:
    """Form of the kernel that copies ``step`` keys at once.

    A tile that they fill is copied without being cleared first.
    """
    columns, columns_v = padded_dims(head_dim, head_dim_v)
    constants: dict[str, int | bool] = {"D": columns, "DV": columns_v, "BLOCK_S": padded(step)}
    return KernelForm(KERNEL, dtype_name(dtype), tuple(constants.items()))


def _launch(
    problem: AttnProblem,
    keys: KeyTensors,
    table: torch.Tensor,
    seqused_kv: torch.Tensor | None,
    longest_q: int,
    k_rows: torch.Tensor,
    v_rows: torch.Tensor,
    has_own_table: bool,
) -> None:
    from fa_triton.kernels.unfold_fractals import unfold_fractals

    sizes = keys.k.dtype, problem.head_dim, problem.head_dim_v
    step = kv_step(problem.page_size, most_keys(*sizes))
    form = unfold_form(*sizes, step)
    win_left = problem.window[0]
    room = problem.seqlen_kv
    reach = room if win_left < 0 else min(room, max(longest_q, 0) + win_left)
    most = problem.batch_size * (room // step) * problem.num_heads_kv
    programs = min(max(most, 1), device_info(keys.k.device).num_aiv)
    by_k, by_v = strides(keys.k, "PA_NZ"), strides(keys.v, "PA_NZ")
    runner(unfold_fractals)[(programs,)](
        k=keys.k,
        v=keys.v,
        block_table=table,
        seqused_kv=seqused_kv,
        k_rows=k_rows,
        v_rows=v_rows,
        batch_size=problem.batch_size,
        num_pages=keys.k.shape[0],
        num_heads=problem.num_heads_kv,
        head_dim=problem.head_dim,
        head_dim_v=problem.head_dim_v,
        page_size=problem.page_size,
        own_pages=table.shape[1] if has_own_table else 0,
        step=step,
        seqlen_kv=room,
        reach=reach,
        stride_table=table.stride(0),
        stride_kb=by_k.outer,
        stride_kn=by_k.head,
        stride_ks=by_k.token,
        stride_kd=by_k.fractal,
        stride_vb=by_v.outer,
        stride_vn=by_v.head,
        stride_vs=by_v.token,
        stride_vd=by_v.fractal,
        **dict(form.constants),
        variant=form.key,
    )
