"""Keys and values of a cache as views ``[P, Nkv, page, D]``, whatever the engine allocated.

The kernels take any strides of pages, heads and tokens, so no view copies anything. All views are
``PA_BNBD`` of ``flash_attn``: the order of the axes is logical, the strides say where things lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CachePages:
    """Keys ``[P, Nkv, page, D]`` and values ``[P, Nkv, page, Dv]``, last dimension dense."""

    k: torch.Tensor
    v: torch.Tensor


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
