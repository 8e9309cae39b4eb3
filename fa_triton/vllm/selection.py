"""The platform's choice of a backend, wrapped: served here, or handed back with the reason.

Works on the selector of every vLLM from 0.23 on: it looks at the fields of the configuration that
are there and passes all arguments on.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from fa_triton.vllm.support import LayerNeeds, reason_against

# a child of vLLM's own logger, which has the handler
log = logging.getLogger("vllm.fa_triton")

_WRAPPED = "_fa_triton_chooses"


def wrap_platform(
    platform: type,
    backend: str,
    reason_of: Callable[[LayerNeeds], str | None] = reason_against,
    replaces: str | None = None,
) -> None:
    """Make a platform choose a backend for all layers that it can serve.

    Args:
        platform: The platform's class; its ``get_attn_backend_cls`` is replaced, once.
        backend: Path of the backend's class.
        reason_of: Why a layer is not served, None if it is.
        replaces: The only choice of the platform that is replaced; None replaces any.
    """
    if _WRAPPED in vars(platform):
        return
    own: Callable[..., str] = platform.get_attn_backend_cls.__func__  # type: ignore[attr-defined]

    @functools.wraps(own)
    def get_attn_backend_cls(
        cls: type, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any
    ) -> str:
        reason = reason_of(needs_of_selection(selected_backend, attn_selector_config))
        if reason is None and replaces is None:
            announce(f"attention is served by {backend}")
            return backend
        chosen = own(cls, selected_backend, attn_selector_config, *args, **kwargs)
        if reason is None and chosen == replaces:
            announce(f"attention is served by {backend}")
            return backend
        reason = reason or "the platform chose it in place of its plain attention"
        announce(f"attention is handed back to {chosen}: {reason}")
        return chosen

    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)  # type: ignore[attr-defined]
    setattr(platform, _WRAPPED, True)


def needs_of_selection(selected_backend: Any, config: Any) -> LayerNeeds:
    """What vLLM's ``AttentionSelectorConfig`` asks for; fields that it lacks are not asked for."""

    def asks(*names: str) -> bool:
        return any(bool(getattr(config, name, False)) for name in names)

    attn_type = getattr(config, "attn_type", None)
    return LayerNeeds(
        head_size=config.head_size,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        block_size=config.block_size,
        attn_type=None if attn_type is None else str(getattr(attn_type, "value", attn_type)),
        is_mla=asks("use_mla"),
        is_sparse=asks("use_sparse"),
        is_compressed=asks("use_compress"),
        is_non_causal=asks("use_non_causal"),
        has_window=asks("has_sliding_window"),
        has_mm_prefix=asks("use_mm_prefix"),
        has_head_scales=asks("use_per_head_quant_scales"),
        has_context_parallel=asks("use_pcp", "use_dcp"),
        has_reference_window=asks("use_rswa"),
        has_device_query_lens=asks("use_adaptive_verification"),
        selected=None if selected_backend is None else selected_backend.name,
    )


@functools.cache
def announce(text: str) -> None:
    """Log a sentence once per process."""
    log.info("fa_triton: %s", text)
