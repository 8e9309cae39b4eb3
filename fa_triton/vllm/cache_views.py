"""Keys and values of a cache as views ``[P, Nkv, page, D]``, whatever the engine allocated.

The kernels take any strides of pages, heads and tokens, so no view copies anything. All views are
``PA_BNBD`` of ``flash_attn``: the order of the axes is logical, the strides say where things lie.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from fa_triton.vllm.identity import identity, tensor_form

SCALE_BYTES = 4


@dataclass(frozen=True)
class CachePages:
    """A cache as the kernels read it.

    Attributes:
        k: Keys ``[P, Nkv, page, D]``, last dimension dense.
        v: Values ``[P, Nkv, page, Dv]``, likewise.
        scales: Of stored integers, of K and of V, per token and head: ``[2, P, Nkv, page]`` fp32.
    """

    k: torch.Tensor
    v: torch.Tensor
    scales: torch.Tensor | None = None

    @functools.cached_property
    def form(self) -> Hashable:
        """What the pages are besides addresses: the same object for all pages of equal forms."""
        sides = (self.k, self.v) if self.scales is None else (self.k, self.v, self.scales)
        return identity(tuple(map(tensor_form, sides)))

    def scale_addresses(self) -> dict[str, int]:
        """Where the scales of K and V start, by the kernels' names; none without scales."""
        if self.scales is None:
            return {}
        first = self.scales.data_ptr()
        return {"k_scale": first, "v_scale": first + SCALE_BYTES * self.scales.stride(0)}


def joint_pages(kv_cache: torch.Tensor, head_size: int) -> CachePages:
    """Views of vLLM's cache from 0.30 on.

    Args:
        kv_cache: ``[P, Nkv, page, D + Dv]``, keys before values, any strides but the last.
        head_size: D.

    Raises:
        ValueError: Another rank, or no room for values.
    """
    if kv_cache.ndim != 4 or kv_cache.shape[-1] <= head_size:
        raise ValueError(
            f"`kv_cache` must be [pages, heads, page, D + Dv] with D = {head_size}, "
            f"got shape {tuple(kv_cache.shape)}"
        )
    return CachePages(kv_cache[..., :head_size], kv_cache[..., head_size:])


def int8_content_bytes(head_size: int, head_size_v: int) -> int:
    """Bytes of a token and head in a cache of eight bits, its two scales included."""
    return head_size + head_size_v + 2 * SCALE_BYTES


def int8_pages(kv_cache: torch.Tensor, head_size: int) -> CachePages:
    """Views of a cache of eight bits, whose layout within a page and head is ours.

    The engine gives every token and head ``D + Dv + 8`` bytes. Those of a page and head together
    hold K ``[page, D]``, V ``[page, Dv]``, the scales of K ``[page]`` and those of V: scales lie
    side by side, so that a tile of keys loads them as a row.

    Args:
        kv_cache: ``[P, Nkv, page, D + Dv + 8]`` int8; the tokens of a head lie side by side.
        head_size: D.

    Raises:
        ValueError: Another form, or tokens of a head that are apart.
    """
    if kv_cache.ndim != 4 or kv_cache.dtype != torch.int8:
        raise ValueError(
            f"`kv_cache` must be int8 [pages, heads, page, D + Dv + 8], got {kv_cache.dtype} "
            f"{tuple(kv_cache.shape)}"
        )
    pages, heads, page, content = kv_cache.shape
    head_size_v = content - head_size - 2 * SCALE_BYTES
    by_page, by_head, by_token, by_byte = kv_cache.stride()
    start = kv_cache.storage_offset()
    if head_size_v <= 0 or (by_token, by_byte) != (content, 1):
        raise ValueError(
            "the tokens of a head must lie side by side in a cache of eight bits, got strides "
            f"{kv_cache.stride()} for D = {head_size}; set VLLM_KV_CACHE_LAYOUT=LBHNC"
        )
    values = start + page * head_size
    first_scale = values + page * head_size_v
    if any(step % SCALE_BYTES for step in (by_page, by_head, first_scale)):
        raise ValueError(
            f"pages of a cache of eight bits must start at multiples of {SCALE_BYTES} bytes, got "
            f"strides {kv_cache.stride()}"
        )
    sizes = (pages, heads, page)
    k = kv_cache.as_strided((*sizes, head_size), (by_page, by_head, head_size, 1), start)
    v = kv_cache.as_strided((*sizes, head_size_v), (by_page, by_head, head_size_v, 1), values)
    floats = torch.empty(0, dtype=torch.float32, device=kv_cache.device)
    floats.set_(
        kv_cache.untyped_storage(),
        first_scale // SCALE_BYTES,
        (2, *sizes),
        (page, by_page // SCALE_BYTES, by_head // SCALE_BYTES, 1),
    )
    return CachePages(k, v, floats)


def token_major_pages(key_cache: torch.Tensor, value_cache: torch.Tensor) -> CachePages:
    """Views of a cache ``[P, page, Nkv, D]`` per side, as vLLM up to 0.29 has it on Ascend.

    Args:
        key_cache: Keys; one tensor per side, or the two halves of one allocation.
        value_cache: Values.

    Raises:
        ValueError: Another rank.
    """
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.ndim != 4:
            raise ValueError(
                f"`{name}` must be [pages, page, heads, D], got shape {tuple(cache.shape)}"
            )
    return CachePages(key_cache.transpose(1, 2), value_cache.transpose(1, 2))
