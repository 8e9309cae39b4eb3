"""vllm-ascend's attention backend with other classes behind it: glue only.

The runner asks for subclasses of vllm-ascend's own classes. Everything about caches, graphs and
transfers of keys is inherited; batches are planned in the builder, attention and cache update are
those of the shared modules.
"""

from __future__ import annotations

from vllm_ascend.attention.attention_v1 import AscendAttentionBackend

from fa_triton.vllm.ascend.builder import FaTritonAscendMetadataBuilder
from fa_triton.vllm.ascend.impl import FaTritonAscendImpl

# vllm-ascend takes the first where it wants one size.
KERNEL_BLOCK_SIZES = (128, 16, 32, 64, 256, 512, 1024)


class FaTritonAscendBackend(AscendAttentionBackend):
    """Attention of decoders over a paged cache by the kernels of fa_triton."""

    @staticmethod
    def get_impl_cls() -> type[FaTritonAscendImpl]:
        """Class of a layer's implementation."""
        return FaTritonAscendImpl

    @staticmethod
    def get_builder_cls() -> type[FaTritonAscendMetadataBuilder]:
        """Class that describes batches."""
        return FaTritonAscendMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        """Tokens of a page; vllm-ascend's own kernels take 128 only."""
        return list(KERNEL_BLOCK_SIZES)

    @classmethod
    def supports_sink(cls) -> bool:
        """Sinks join the denominator."""
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Batches are split and planned by the query lengths of the host."""
        return False
