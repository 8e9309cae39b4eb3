"""What a layer on Ascend needs beyond what vLLM's selector says."""

from __future__ import annotations

import dataclasses
from typing import Any

from fa_triton.vllm.support import HEAD_SIZE_MULTIPLE, INT8_CACHE, LayerNeeds, reason_against

# vllm-ascend's runner asks once with this head size, for a class and not for a layer.
PROBE_HEAD_SIZE = 0


def reason_on_ascend(needs: LayerNeeds) -> str | None:
    """Say why a layer cannot be served on Ascend; None if it can.

    Reads vLLM's current configuration, where there is one, for what the selector leaves out.
    """
    return reason_against_with(needs, _current_config())


def reason_against_with(needs: LayerNeeds, config: Any) -> str | None:
    """Say why a layer cannot be served under a configuration of vLLM; None if it can.

    Args:
        needs: What the selector says.
        config: vLLM's ``VllmConfig``, or None.
    """
    if needs.head_size == PROBE_HEAD_SIZE:
        needs = dataclasses.replace(needs, head_size=HEAD_SIZE_MULTIPLE)
    if needs.kv_cache_dtype == INT8_CACHE:
        return f"vllm-ascend allocates no cache with scales, got kv_cache_dtype={INT8_CACHE}"
    if config is None:
        return reason_against(needs)
    parallel = config.parallel_config
    ranks = (
        getattr(parallel, "prefill_context_parallel_size", 1),
        getattr(parallel, "decode_context_parallel_size", 1),
    )
    needs = dataclasses.replace(
        needs, has_context_parallel=needs.has_context_parallel or max(ranks) > 1
    )
    return reason_against(needs) or _reason_of_config(config)


def _reason_of_config(config: Any) -> str | None:
    """Reasons that vllm-ascend's options are."""
    # a checkpoint with an int8 cache; its layers change their class while weights are loaded
    if getattr(config.quant_config, "enable_c8_quant", False):
        return "a checkpoint with a quantised cache (C8) is not served"
    additional = config.additional_config
    options = additional if isinstance(additional, dict) else {}
    if options.get("enable_hamming_sparse") and not config.speculative_config:
        return "attention to keys that are chosen by hash (enable_hamming_sparse) is not served"
    return None


def _current_config() -> Any:
    from vllm.config import get_current_vllm_config_or_none

    return get_current_vllm_config_or_none()
