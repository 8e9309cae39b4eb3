"""The kernels of all operators as the compile check takes them, one entry per family.

A family lists what is shipped and builds the variant of any key that a launch logged. To ship
another one, give it an entry in ``FAMILIES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fa_triton.attention import shipped as attention
from fa_triton.attention import unfold_shipped as fractals
from fa_triton.compile.variant import KernelVariant
from fa_triton.delta_rule import recurrent_shipped as recurrent_kda
from fa_triton.delta_rule import shipped as chunk_kda
from fa_triton.kernel_form import parse_key
from fa_triton.layer import shipped as layer
from fa_triton.vllm import cache_shipped as vllm_cache


@dataclass(frozen=True)
class KernelFamily:
    """Kernels that are declared together.

    Attributes:
        kernels: Their names.
        shipped: Lists the shipped variants.
        of_key: Builds the variant of a key, shipped or not.
    """

    kernels: tuple[str, ...]
    shipped: Callable[[], list[KernelVariant]]
    of_key: Callable[[str], KernelVariant]


FAMILIES = (
    KernelFamily(attention.KERNELS, attention.attn_variants, attention.attn_variant),
    KernelFamily(fractals.KERNELS, fractals.unfold_variants, fractals.unfold_variant),
    KernelFamily(chunk_kda.KERNELS, chunk_kda.chunk_variants, chunk_kda.chunk_variant),
    KernelFamily(
        recurrent_kda.KERNELS, recurrent_kda.recurrent_variants, recurrent_kda.recurrent_variant
    ),
    KernelFamily(layer.KERNELS, layer.layer_variants, layer.layer_variant),
    KernelFamily(vllm_cache.KERNELS, vllm_cache.cache_variants, vllm_cache.cache_variant),
)


def all_variants() -> list[KernelVariant]:
    """List every kernel and tile that the launchers can choose."""
    return [variant for family in FAMILIES for variant in family.shipped()]


def variant_of_key(key: str) -> KernelVariant:
    """Build the variant of a key that a launch logged, for all devices.

    Raises:
        ValueError: The text is no key of a kernel.
    """
    kernel = parse_key(key).kernel
    for family in FAMILIES:
        if kernel in family.kernels:
            return family.of_key(key)
    known = ", ".join(name for family in FAMILIES for name in family.kernels)
    raise ValueError(f"`key` must start with one of {known}, got {key!r}")
