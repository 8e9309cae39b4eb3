"""vllm-ascend's attention layer with attention and cache update by these kernels.

Its ``forward`` and ``forward_impl`` are inherited, with all that surrounds attention there (fences
of cache transfers, pooling models, profiling); the two methods that launch its kernels, and the one
that writes the cache, are replaced.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl
from vllm_ascend.attention.utils import notify_kv_cache_written

from fa_triton.vllm.attention import LayerForm, attend_batch, window_left
from fa_triton.vllm.batch import AttnBatch, PlanForm
from fa_triton.vllm.cache_update import update_cache
from fa_triton.vllm.cache_views import CachePages, token_major_pages
from fa_triton.vllm.recording import counts
from fa_triton.vllm.selection import announce
from fa_triton.vllm.sinks import sink_logits

# Where the builder leaves the batch in vllm-ascend's metadata.
BATCH_ATTRIBUTE = "fa_triton_batch"


class FaTritonAscendImpl(AscendAttentionBackendImpl):
    """One attention layer; arguments are those of vLLM's ``AttentionImpl``."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        sinks: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            None,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            sinks,
            **kwargs,
        )
        # vllm-ascend's class puts slopes on the device, and drops them and the soft cap later
        self._slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        )
        self._sinks = sinks
        self._pages: CachePages | None = None
        self.form = LayerForm(
            num_heads_q=num_heads,
            num_heads_kv=self.num_kv_heads,
            head_dim=head_size,
            softmax_scale=self.scale,
            win_left=window_left(sliding_window),
            softcap=logits_soft_cap or 0.0,
            batch_invariant=_is_batch_invariant(),
        )

    def reshape_and_cache(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: Any,
        attn_metadata: Any,
        output: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Write the new keys and values; slot -1 is padding.

        A layer that shares the cache of another one writes nothing, by vllm-ascend's own method.
        """
        if len(kv_cache) < 2 or self.kv_sharing_target_layer_name is not None:
            return super().reshape_and_cache(query, key, value, kv_cache, attn_metadata, output)
        slots = attn_metadata.slot_mapping[: attn_metadata.num_actual_tokens]
        self._write(key, value, kv_cache, slots)
        notify_kv_cache_written()
        return query, key, value, output

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: Any,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write keys and values where the runner asks for that alone."""
        self._write(key, value, kv_cache, slot_mapping)

    def forward_fused_infer_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        kv_cache: Any = None,
    ) -> torch.Tensor:
        """Attend a batch, whatever its kind: the cache holds the new keys by now.

        Args:
            query: ``[T, Nq, D]``, T at least the tokens of the batch.
            key: New keys; read only where the batch is handed back.
            value: New values, likewise.
            attn_metadata: vllm-ascend's metadata, with the batch of our builder.
            output: ``[T, Nq, D]``, written in place.
            kv_cache: Keys and values, as the runner allocated them.

        Returns:
            ``output``.
        """
        batch = self._batch_served(attn_metadata)
        if batch is None:
            return super().forward_fused_infer_attention(
                query, key, value, attn_metadata, output, kv_cache
            )
        self._attend(batch, query, output)
        return output

    def forward_paged_attention(
        self,
        query: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend decode steps of shapes for which vllm-ascend has another kernel."""
        batch = self._batch_served(attn_metadata)
        if output is None or batch is None:
            return super().forward_paged_attention(query, attn_metadata, output)
        self._attend(batch, query, output)
        return output

    def plan_form(self) -> PlanForm | None:
        """What plans of this layer depend on; None before its first call."""
        if self._pages is None:
            return None
        return self.form.plan_form(self._pages.k.shape[2], self._pages.k.dtype)

    def _batch_served(self, attn_metadata: Any) -> AttnBatch | None:
        """The batch, None after a line of log if vllm-ascend's kernels have to take it."""
        batch: AttnBatch | None = getattr(attn_metadata, BATCH_ATTRIBUTE, None)
        if batch is None:
            reason = "only some of its sequences have a causal mask"
        elif self.form.win_left >= 0 and not attn_metadata.causal:
            reason = "a window without a causal mask is not served"
        else:
            return batch
        announce(f"a batch is handed back to vllm-ascend's kernels: {reason}")
        return None

    def _attend(self, batch: AttnBatch, query: torch.Tensor, output: torch.Tensor) -> None:
        counts.forwards += 1
        if self._slopes is not None and self._slopes.device != query.device:
            self._slopes = self._slopes.to(query.device)
        attend_batch(
            self.form,
            batch,
            query,
            self._pages_of(self.key_cache, self.value_cache),
            output,
            sinks=sink_logits(self._sinks),
            alibi_slopes=self._slopes,
        )

    def _write(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: Any, slots: torch.Tensor
    ) -> None:
        if self.key_cache is None:
            self.key_cache, self.value_cache = kv_cache[0], kv_cache[1]
        counts.cache_updates += 1
        update_cache(key, value, self._pages_of(self.key_cache, self.value_cache), slots)

    def _pages_of(self, key_cache: torch.Tensor, value_cache: torch.Tensor) -> CachePages:
        """Views of the cache, made once: the runner binds the same tensors for good."""
        if self._pages is None:
            # [P, heads, page, D] where the engine asked for that layout, else [P, page, heads, D]
            is_head_major = getattr(self, "use_bnsd_kv_cache", False)
            view = CachePages if is_head_major else token_major_pages
            self._pages = view(key_cache, value_cache)
        return self._pages


def _is_batch_invariant() -> bool:
    import vllm.envs

    return bool(getattr(vllm.envs, "VLLM_BATCH_INVARIANT", False))
