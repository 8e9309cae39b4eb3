"""The backend as vLLM from 0.30 on wants it: glue only.

The engine owns the cache, one view ``[P, Nkv, page, D + Dv]`` of any strides per layer, and calls
the cache update by itself before attention.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from vllm.config import (
    VllmConfig,
    get_current_vllm_config_or_none,
    get_layers_from_vllm_config,
)
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from fa_triton.vllm.attention import LayerForm, attend_batch, window_left
from fa_triton.vllm.batch import AttnBatch, KnownSteps, PlanForm, make_batch
from fa_triton.vllm.cache_update import update_cache
from fa_triton.vllm.cache_views import (
    CachePages,
    int8_content_bytes,
    int8_pages,
    joint_pages,
)
from fa_triton.vllm.plugin import BACKEND_NAME
from fa_triton.vllm.recording import Recorder, counts
from fa_triton.vllm.sinks import sink_logits
from fa_triton.vllm.support import (
    DTYPES,
    INT8_CACHE,
    INT8_PAGE_MULTIPLE,
    MAX_PAGE_SIZE,
    PAGE_MULTIPLE,
    PLAIN_CACHES,
    asked_options,
    block_size_problem,
    head_size_problem,
    kernel_block_size,
    preferred_block_size,
)


class FaTritonBackend(AttentionBackend):
    """Attention of decoders over a paged cache by the kernels of fa_triton."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(DTYPES)
    supported_kv_cache_dtypes: ClassVar[list[Any]] = [*PLAIN_CACHES, INT8_CACHE]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        """Name of a member of vLLM's enum; the layer looks it up there."""
        return BACKEND_NAME

    @staticmethod
    def get_impl_cls() -> type[FaTritonImpl]:
        """Class of a layer's implementation."""
        return FaTritonImpl

    @staticmethod
    def get_builder_cls() -> type[FaTritonMetadataBuilder]:
        """Class that describes batches."""
        return FaTritonMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Multiples of 16; blocks larger than a page of the kernels are divided by the engine."""
        multiple = INT8_PAGE_MULTIPLE if _stores_int8(kv_cache_spec) else PAGE_MULTIPLE
        size = getattr(kv_cache_spec, "block_size", 0)
        block = kernel_block_size(size, multiple) if size > MAX_PAGE_SIZE else 0
        return [block] if block else [MultipleOf(multiple)]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Make room for the scales of a cache of eight bits."""
        if not _stores_int8(spec) or spec.state_content_bytes is not None:
            return spec
        content = int8_content_bytes(spec.head_size, spec.head_size_v)
        return replace(spec, state_content_bytes=content)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Whether a head size is served."""
        return head_size_problem("head size", head_size) is None

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        """Whether a block size of the cache is served."""
        return block_size is None or block_size_problem(block_size) is None

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        """The engine's own size, rounded up in a cache of eight bits."""
        config = get_current_vllm_config_or_none()
        stored = None if config is None else config.cache_config.cache_dtype
        return preferred_block_size(default_block_size, stored)

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...] | None:
        """Any layout; a head's tokens side by side first, which are read in a row."""
        return tuple(sorted(KVCacheLayout, key=lambda layout: layout is not KVCacheLayout.LBHNC))

    @classmethod
    def supports_sink(cls) -> bool:
        """Sinks join the denominator."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Keys left of a window are never read."""
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Batches without a causal mask are served, but for layers with a window."""
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Plans and tiles can depend on a sequence alone."""
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Batches are split and planned by the query lengths of the host."""
        return False

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Only decoders are served."""
        return attn_type == AttentionType.DECODER


@dataclass
class FaTritonMetadata(AttentionMetadata):
    """A batch for the layers of one KV cache group.

    Attributes:
        batch: The batch, planned.
        num_actual_tokens: Query tokens without padding.
        max_query_len: Longest query.
        max_seq_len: Longest sequence, or a bound.
        query_start_loc: ``[B + 1]`` int32, starts of the queries.
        seq_lens: ``[B]`` int32, keys of each sequence.
        block_table: ``[B, pages]`` int32.
        slot_mapping: Slots of the new tokens.
        causal: Whether a token sees no later ones.
    """

    batch: AttnBatch
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True


class FaTritonMetadataBuilder(AttentionMetadataBuilder[FaTritonMetadata]):
    """Describes and plans the batches of one KV cache group."""

    # No graph of a device was ever captured with these kernels. They read lengths on the device
    # and could be replayed, which tests show on the CPU; that is no capture.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        self._longest_short = self.reorder_batch_threshold or 1
        if device.type == "cpu":
            # looking for sequences to swap, in every step, costs more than an alternation here and
            # there that is attended in more parts
            self.reorder_batch_threshold = None
        self._recorder = Recorder.of_environment()
        self._forms: tuple[PlanForm, ...] | None = None
        self._known = KnownSteps()

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> FaTritonMetadata:
        """Describe and plan a batch, once for all layers of the group.

        Raises:
            NotImplementedError: A batch whose sequences differ in having a causal mask.
        """
        start = time.perf_counter()
        common = common_attn_metadata
        if isinstance(common.causal, torch.Tensor):
            raise NotImplementedError(
                "`causal` must be one bool per batch, got a tensor; unset FA_TRITON_VLLM"
            )
        starts = common.query_start_loc_cpu.numpy()
        host_lens, are_bounds = _host_seq_lens(common)
        batch = make_batch(
            query_start_loc=common.query_start_loc,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            host_query_start_loc=starts,
            host_seq_lens=host_lens,
            are_bounds=are_bounds,
            num_tokens=common.num_actual_tokens,
            forms=self._plan_forms(),
            is_causal=common.causal,
            longest_short=self._longest_short,
            known=self._known,
        )
        counts.batches += 1
        if self._recorder is not None:
            self._recorder.batch(batch, starts, host_lens, time.perf_counter() - start)
        return FaTritonMetadata(
            batch=batch,
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            max_seq_len=common.max_seq_len,
            query_start_loc=common.query_start_loc,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
        )

    def _plan_forms(self) -> tuple[PlanForm, ...]:
        """What plans of this group depend on: one form, or several where windows differ."""
        if self._forms is None:
            layers = get_layers_from_vllm_config(self.vllm_config, Attention, self.layer_names)
            page, dtype = self.kv_cache_spec.block_size, self.vllm_config.model_config.dtype
            forms = [
                layer.impl.form.plan_form(page, dtype)
                for layer in layers.values()
                if isinstance(layer.impl, FaTritonImpl)
            ]
            self._forms = tuple(dict.fromkeys(forms))
        return self._forms


class FaTritonImpl(AttentionImpl[FaTritonMetadata]):
    """One attention layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **extra: Any,
    ) -> None:
        wanted = asked_options(extra)
        if wanted or attn_type != AttentionType.DECODER:
            raise NotImplementedError(
                "an attention layer must be a decoder's without further options, got "
                f"attn_type={attn_type}, {', '.join(wanted) or 'no options'}; unset FA_TRITON_VLLM"
            )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self.alibi_slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        )
        self.form = LayerForm(
            num_heads_q=num_heads,
            num_heads_kv=self.num_kv_heads,
            head_dim=head_size,
            softmax_scale=self.scale,
            win_left=window_left(sliding_window),
            softcap=self.logits_soft_cap,
            batch_invariant=_is_batch_invariant(),
        )
        self._cache: torch.Tensor | None = None
        self._pages: CachePages | None = None

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write the new keys and values; slot -1 is padding."""
        counts.cache_updates += 1
        update_cache(key, value, self._pages_of(kv_cache), slot_mapping)

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: FaTritonMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend a batch.

        Args:
            layer: The layer; not read.
            query: ``[T, Nq, D]``, T at least the tokens of the batch.
            key: New keys, which lie in the cache by now; not read.
            value: New values, likewise.
            kv_cache: ``[P, Nkv, page, D + Dv]``.
            attn_metadata: The batch, None while the engine measures memory.
            output: ``[T, Nq, Dv]``, written in place.
            output_scale: Must be None.
            output_block_scale: Must be None.

        Returns:
            ``output``.

        Raises:
            NotImplementedError: Quantised results, which the backend does not offer.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("`output_scale` must be None: results are not quantised")
        if attn_metadata is None:
            return output.fill_(0)
        counts.forwards += 1
        slopes = self.alibi_slopes
        if slopes is not None and slopes.device != query.device:
            slopes = self.alibi_slopes = slopes.to(query.device)
        attend_batch(
            self.form,
            attn_metadata.batch,
            query,
            self._pages_of(kv_cache),
            output,
            sinks=sink_logits(self.sinks),
            alibi_slopes=slopes,
        )
        return output

    def _pages_of(self, kv_cache: torch.Tensor) -> CachePages:
        """Views of the cache, made once: the engine binds the same tensor for good."""
        if self._pages is None or kv_cache is not self._cache:
            views = int8_pages if self.kv_cache_dtype == INT8_CACHE else joint_pages
            self._cache, self._pages = kv_cache, views(kv_cache, self.head_size)
        return self._pages


def _host_seq_lens(common: CommonAttentionMetadata) -> tuple[np.ndarray, bool]:
    """Key lengths that the host knows without a synchronisation, and whether they are bounds."""
    if common.seq_lens.device.type == "cpu":
        return common.seq_lens.numpy(), False
    bounds = common.seq_lens_cpu_upper_bound
    if bounds is not None:
        return bounds.numpy(), True
    return np.full(common.seq_lens.shape[0], common.max_seq_len, np.int64), True


def _stores_int8(spec: Any) -> bool:
    mode = getattr(spec, "kv_quant_mode", None)
    return getattr(mode, "name", "") == INT8_CACHE.upper()


def _is_batch_invariant() -> bool:
    import vllm.envs

    return bool(getattr(vllm.envs, "VLLM_BATCH_INVARIANT", False))
