"""New keys and values into the pages of a cache.

On the CPU, where the call costs more than the copy of a few tokens, a launch is kept and repeated
with other addresses: every layer and every decode step makes the same one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from fa_triton.device import cpu_mode, device_info
from fa_triton.kernel_form import KernelForm, dtype_name
from fa_triton.launch import runner
from fa_triton.padding import padded
from fa_triton.validation import check_is_tensor
from fa_triton.vllm.cache_views import CachePages

if TYPE_CHECKING:
    from fa_triton.native.kernel import BoundLaunch

KERNEL = "cache_update"
INT8_KERNEL = "cache_update_int8"
# Elements of a tile: rows of several heads, double-buffered and converted on chip.
TILE_ELEMENTS = 4096
# A thread of the CPU writes so many tokens while another one wakes up.
CPU_TOKENS_PER_PROGRAM = 64
_KEPT_LAUNCHES = 256

_kept: dict[tuple[object, ...], BoundLaunch] = {}


def update_cache(
    key: torch.Tensor, value: torch.Tensor, pages: CachePages, slot_mapping: torch.Tensor
) -> None:
    """Write the keys and values of new tokens into their slots.

    Args:
        key: ``[T, Nkv, D]``, T at least the number of slots: rows behind are padding.
        value: ``[T, Nkv, Dv]``, dtype of the keys.
        pages: Where they go: converted to the dtype of the cache, or with ``scales`` quantised per
            token and head.
        slot_mapping: ``[slots]`` int32 or int64 on the device: token ``t`` goes to place
            ``slot % page`` of page ``slot // page``. Slots outside of the cache, -1 above all, are
            skipped; all others must differ.

    Raises:
        ValueError: Shapes that do not fit each other; tensors that negate their values lazily.
        TypeError: Slots that are no integers ``[slots]``.

    Notes:
        Host sync: none. Mutates the pages. Source: vLLM ``reshape_and_cache_flash``.
    """
    tokens = slot_mapping.numel()
    programs = _programs(tokens, key)
    mode = cpu_mode() if key.is_cpu else None
    same = kept = None
    if mode == "native":
        same = _repeat_key(key, value, pages, slot_mapping, programs)
        kept = _kept.get(same)
        if kept is not None and kept.launch(_addresses(key, value, pages, slot_mapping)):
            return
    _check(key, value, pages, slot_mapping)
    if not tokens:
        return
    if mode == "reference":
        update_by_reference(key, value, pages, slot_mapping)
        return
    arguments, form = _launch_arguments(key, value, pages, slot_mapping)
    if pages.scales is None:
        from fa_triton.kernels.cache_update import cache_update as kernel
    else:
        from fa_triton.kernels.cache_update_int8 import cache_update_int8 as kernel
    grid = (programs,)
    runner(kernel)[grid](**arguments, variant=form.key)
    given = {"key": key, "value": value, "slot_mapping": slot_mapping}
    reads_copies = any(arguments[name] is not tensor for name, tensor in given.items())
    if same is not None and kept is None and not reads_copies:
        _keep(same, runner(kernel).bind(grid, **arguments))


def _repeat_key(
    key: torch.Tensor,
    value: torch.Tensor,
    pages: CachePages,
    slot_mapping: torch.Tensor,
    programs: int,
) -> tuple[object, ...]:
    """All that decides about a launch for keys on the CPU besides addresses."""
    return (
        pages.form,
        programs,
        key.dtype,
        key.shape,
        key.stride(),
        key.is_neg(),
        value.is_cpu,
        value.dtype,
        value.shape,
        value.stride(),
        value.is_neg(),
        slot_mapping.is_cpu,
        slot_mapping.dtype,
        slot_mapping.shape,
        slot_mapping.stride(),
        slot_mapping.is_neg(),
    )


def _addresses(
    key: torch.Tensor, value: torch.Tensor, pages: CachePages, slot_mapping: torch.Tensor
) -> dict[str, int]:
    """Where the tensors of a launch lie, by the kernel's names."""
    addresses = {
        "key": key.data_ptr(),
        "value": value.data_ptr(),
        "slot_mapping": slot_mapping.data_ptr(),
        "k_pages": pages.k.data_ptr(),
        "v_pages": pages.v.data_ptr(),
    }
    return addresses | pages.scale_addresses()


def _keep(same: tuple[object, ...], launch: BoundLaunch | None) -> None:
    """Keep a launch, which holds no tensor: a repetition brings all addresses along."""
    if launch is None:
        return
    if len(_kept) >= _KEPT_LAUNCHES:
        _kept.clear()
    _kept[same] = launch


def _launch_arguments(
    key: torch.Tensor, value: torch.Tensor, pages: CachePages, slot_mapping: torch.Tensor
) -> tuple[dict[str, object], KernelForm]:
    """Arguments of the kernel by name, and its form; rows that are not dense are copied."""
    if key.stride(2) != 1:
        key = key.contiguous()
    if value.stride(2) != 1:
        value = value.contiguous()
    k, v = pages.k, pages.v
    num_pages, heads, page_size, head_dim = k.shape
    head_dim_v = v.shape[3]
    form = cache_update_form(key.dtype, k.dtype, heads, head_dim, head_dim_v)
    scales = {}
    if pages.scales is not None:
        scales = {
            "k_scale": pages.scales[0],
            "v_scale": pages.scales[1],
            "stride_cb": pages.scales.stride(1),
            "stride_cn": pages.scales.stride(2),
        }
    stride_kb, stride_kn, stride_kt, _ = k.stride()
    stride_vb, stride_vn, stride_vt, _ = v.stride()
    arguments: dict[str, object] = dict(
        key=key,
        value=value,
        slot_mapping=slot_mapping.contiguous(),
        k_pages=k,
        v_pages=v,
        num_tokens=slot_mapping.shape[0],
        num_slots=num_pages * page_size,
        num_heads=heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        page_size=page_size,
        stride_xt=key.stride(0),
        stride_xn=key.stride(1),
        stride_yt=value.stride(0),
        stride_yn=value.stride(1),
        stride_kb=stride_kb,
        stride_kn=stride_kn,
        stride_kt=stride_kt,
        stride_vb=stride_vb,
        stride_vn=stride_vn,
        stride_vt=stride_vt,
        **scales,
        **dict(form.constants),
    )
    return arguments, form


def update_by_reference(
    key: torch.Tensor, value: torch.Tensor, pages: CachePages, slot_mapping: torch.Tensor
) -> None:
    """Do the same with indexing; synchronises."""
    num_pages, _, page_size, _ = pages.k.shape
    slots = slot_mapping.long()
    kept = (slots >= 0) & (slots < num_pages * page_size)
    page, place = slots[kept] // page_size, slots[kept] % page_size
    for side, (cache, given) in enumerate(((pages.k, key), (pages.v, value))):
        rows = given[: len(slots)][kept]
        if pages.scales is not None:
            scale = (rows.float().abs().amax(-1) / 127).clamp(min=1e-6)
            pages.scales[side][page, :, place] = scale
            units = rows.float() * (1 / scale)[..., None]
            rows = units.sign() * (units.abs() + 0.5).floor().clamp(max=127)
        cache[page, :, place] = rows.to(cache.dtype)


@functools.lru_cache(maxsize=256)
def cache_update_form(
    dtype: torch.dtype, cache_dtype: torch.dtype, heads: int, head_dim: int, head_dim_v: int
) -> KernelForm:
    """Form of the kernel that serves a layer."""
    columns, columns_v = padded(head_dim, 16), padded(head_dim_v, 16)
    rows = min(padded(heads), max(1, TILE_ELEMENTS // max(columns, columns_v)))
    constants = {"BLOCK_N": rows, "D": columns, "DV": columns_v}
    return KernelForm(
        INT8_KERNEL if cache_dtype == torch.int8 else KERNEL,
        dtype_name(dtype),
        tuple(constants.items()),
        dtypes=(("cache", dtype_name(cache_dtype)),),
    )


def _programs(tokens: int, key: torch.Tensor) -> int:
    each = CPU_TOKENS_PER_PROGRAM if key.is_cpu else 1
    if tokens <= each:
        return 1
    return min(-(-tokens // each), device_info(key.device).num_aiv)


def _check(
    key: torch.Tensor, value: torch.Tensor, pages: CachePages, slot_mapping: torch.Tensor
) -> None:
    given = {"key": key, "value": value, "slot_mapping": slot_mapping}
    for name, tensor in (given | {"k_pages": pages.k, "v_pages": pages.v}).items():
        check_is_tensor(name, tensor)
    if slot_mapping.dtype not in (torch.int32, torch.int64) or slot_mapping.ndim != 1:
        raise TypeError(
            "`slot_mapping` must be int32 or int64 [slots], got "
            f"{slot_mapping.dtype} {tuple(slot_mapping.shape)}"
        )
    tokens = slot_mapping.shape[0]
    for name, rows, cache in (("key", key, pages.k), ("value", value, pages.v)):
        heads, columns = cache.shape[1], cache.shape[3]
        if rows.ndim != 3 or rows.shape[0] < tokens or rows.shape[1:] != (heads, columns):
            raise ValueError(
                f"`{name}` must be [tokens, {heads}, {columns}] with at least {tokens} tokens, one "
                f"per slot, got shape {tuple(rows.shape)}"
            )
        if cache.stride(3) != 1:
            raise ValueError(
                f"the pages of `{name}` must be dense along the head dim, got strides "
                f"{cache.stride()}"
            )
    if (pages.scales is not None) != (pages.k.dtype == torch.int8):
        raise TypeError(
            f"pages must have scales if they are int8 and only then, got {pages.k.dtype} "
            f"{'without' if pages.scales is None else 'with'} them"
        )
