"""vllm-ascend's metadata with a planned batch beside it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backend import AttentionCGSupport
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder, AscendMetadata

from fa_triton.vllm.ascend.impl import BATCH_ATTRIBUTE, FaTritonAscendImpl
from fa_triton.vllm.batch import AttnBatch, PlanForm, make_batch
from fa_triton.vllm.recording import Recorder, counts


class FaTritonAscendMetadataBuilder(AscendAttentionMetadataBuilder):
    """Builds vllm-ascend's metadata, then describes and plans the batch, once per KV group.

    What vllm-ascend's own kernels need is built as well: layers that are handed back at a call use
    it, and so does its bookkeeping.
    """

    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._recorder = Recorder.of_environment()

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """No graph of an NPU was ever captured with these kernels."""
        return AttentionCGSupport.NEVER

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> AscendMetadata:
        """Build vllm-ascend's metadata and the batch.

        The lengths on the host are those of the metadata; the kernels read the runner's own buffers
        on the device, which it updates in place.
        """
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        start = time.perf_counter()
        common = common_attn_metadata
        # a batch that fills the buffers has a dummy request in its query starts alone
        count = min(common.num_reqs, common.seq_lens.shape[0])
        starts = np.asarray((0, *metadata.actual_seq_lengths_q[:count]), np.int64)
        lens = np.asarray(metadata.seq_lens_list[:count], np.int64)
        batch: AttnBatch | None = None
        if isinstance(common.causal, bool):
            batch = make_batch(
                query_start_loc=common.query_start_loc[: count + 1],
                seq_lens=common.seq_lens[:count],
                block_table=metadata.block_tables[:count],
                host_query_start_loc=starts,
                host_seq_lens=lens,
                # drafts that were rejected shorten a sequence on the device first
                are_bounds=common.seq_lens.device.type != "cpu",
                num_tokens=common.num_actual_tokens,
                forms=self._plan_forms() if common.causal else (),
                is_causal=common.causal,
                longest_short=self.decode_threshold,
            )
            counts.batches += 1
            if self._recorder is not None:
                self._recorder.batch(batch, starts, lens, time.perf_counter() - start)
        setattr(metadata, BATCH_ATTRIBUTE, batch)
        return metadata

    def _plan_forms(self) -> tuple[PlanForm, ...]:
        """What plans of this group depend on, as far as layers know their pages.

        A layer learns the size of its pages with the cache, at its first call, which plans for
        itself; from then on the builder does.
        """
        context = self.compilation_config.static_forward_context
        impls = (getattr(context.get(name), "impl", None) for name in self.layer_names)
        forms = (i.plan_form() for i in impls if isinstance(i, FaTritonAscendImpl))
        return tuple(dict.fromkeys(form for form in forms if form is not None))
