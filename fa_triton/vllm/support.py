"""Whether a layer can be served here, or why it goes back to the platform's own backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fa_triton.validation.pages import MAX_PAGE_SIZE

PAGE_MULTIPLE = 16
HEAD_SIZE_MULTIPLE = 8
MAX_HEAD_SIZE = 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Names of cache dtypes that say how the cache is stored; "auto" is the model's dtype.
PLAIN_CACHES = {"auto": None, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Stored integers with a scale per token and head, as the engine calls them.
INT8_CACHE = "int8_per_token_head"
INT8_PAGE_MULTIPLE = 32
INT8_HEAD_SIZE_MULTIPLE = 16
INT8_DTYPES = (torch.float16, torch.bfloat16)
DECODER = "decoder"


@dataclass(frozen=True, kw_only=True)
class LayerNeeds:
    """What an attention layer asks of a backend.

    Attributes:
        head_size: Head dimension of q and k.
        dtype: Of q, k and v.
        head_size_v: Head dimension of v, None for that of q.
        kv_cache_dtype: The engine's name of the cache dtype, None for that of the model.
        block_size: Tokens of a cache block, None while the engine has not chosen one.
        attn_type: The engine's name: ``decoder``, ``encoder``, ``encoder_only``,
            ``encoder_decoder``.
        is_mla: Whether it is multi-head latent attention.
        is_sparse: Whether only chosen keys are attended.
        is_compressed: Whether keys are compressed before they are attended.
        is_non_causal: Whether the engine may ask a decoder for attention without a mask.
        has_window: Whether the layer has a sliding window.
        has_mm_prefix: Whether tokens of an image see each other both ways.
        has_head_scales: Whether the checkpoint has quantisation scales per head.
        has_context_parallel: Whether the keys of a sequence are spread over ranks.
        has_reference_window: Whether a window spares the prompt.
        has_device_query_lens: Whether the device may shorten the query lengths that the host knows.
        selected: Name of a backend that the user chose, None for the platform's choice.
    """

    head_size: int
    dtype: torch.dtype
    head_size_v: int | None = None
    kv_cache_dtype: str | None = "auto"
    block_size: int | None = None
    attn_type: str | None = DECODER
    is_mla: bool = False
    is_sparse: bool = False
    is_compressed: bool = False
    is_non_causal: bool = False
    has_window: bool = False
    has_mm_prefix: bool = False
    has_head_scales: bool = False
    has_context_parallel: bool = False
    has_reference_window: bool = False
    has_device_query_lens: bool = False
    selected: str | None = None


def reason_against(needs: LayerNeeds) -> str | None:
    """Say why a layer cannot be served here; None if it can.

    The reasons are sentences for a log, the most fundamental one first.
    """
    kind = _reason_of_kind(needs)
    if kind:
        return kind
    if needs.dtype not in DTYPES:
        return f"activations must be float16, bfloat16 or float32, got {needs.dtype}"
    for name, size in (("head size", needs.head_size), ("head size of v", needs.head_size_v)):
        problem = None if size is None else head_size_problem(name, size)
        if problem:
            return problem
    problem = cache_dtype_problem(needs.kv_cache_dtype, needs.dtype)
    if problem is None and needs.kv_cache_dtype == INT8_CACHE:
        problem = _int8_problem(needs)
    if problem or needs.block_size is None:
        return problem
    return block_size_problem(needs.block_size)


def head_size_problem(name: str, size: int) -> str | None:
    """Say why a head size is not served; None if it is."""
    if 0 < size <= MAX_HEAD_SIZE and size % HEAD_SIZE_MULTIPLE == 0:
        return None
    return (
        f"the {name} must be a multiple of {HEAD_SIZE_MULTIPLE} up to {MAX_HEAD_SIZE}, got {size}"
    )


def cache_dtype_problem(kv_cache_dtype: str | None, dtype: torch.dtype) -> str | None:
    """Say why a cache dtype is not served; None if it is."""
    name = "auto" if kv_cache_dtype is None else kv_cache_dtype
    if name == INT8_CACHE:
        if dtype in INT8_DTYPES:
            return None
        return f"a cache of eight bits needs activations in 16 bits, got {dtype}"
    if name not in PLAIN_CACHES:
        return (
            f"the cache must be stored in the dtype of the model or as {INT8_CACHE}, got "
            f"kv_cache_dtype={name}"
        )
    stored = PLAIN_CACHES[name]
    if stored is not None and stored != dtype:
        return f"the cache must be stored in the dtype of the model {dtype}, got {name}"
    return None


def block_size_problem(size: int) -> str | None:
    """Say why a block size of the cache is not served; None if it is."""
    if size % PAGE_MULTIPLE == 0 and (size <= MAX_PAGE_SIZE or kernel_block_size(size)):
        return None
    return (
        f"cache blocks must be multiples of {PAGE_MULTIPLE} tokens up to {MAX_PAGE_SIZE} or be "
        f"divisible into such blocks, got {size}; set --block-size"
    )


def kernel_block_size(size: int, multiple: int = PAGE_MULTIPLE) -> int:
    """Largest block that divides the engine's blocks and that the kernels take; 0 for none."""
    for parts in range(1, size // multiple + 1):
        block, rest = divmod(size, parts)
        if not rest and block <= MAX_PAGE_SIZE and block % multiple == 0:
            return block
    return 0


def preferred_block_size(default: int, kv_cache_dtype: str | None) -> int:
    """Tokens of a block where the user asks for none: the engine's default, if it is served."""
    if kv_cache_dtype == INT8_CACHE:
        return -(-default // INT8_PAGE_MULTIPLE) * INT8_PAGE_MULTIPLE
    return PAGE_MULTIPLE if block_size_problem(default) else default


def asked_options(options: Mapping[str, object]) -> list[str]:
    """Names of the options of a layer that ask for something; a tensor always does."""
    return sorted(n for n, value in options.items() if isinstance(value, torch.Tensor) or value)


def _int8_problem(needs: LayerNeeds) -> str | None:
    sizes = (needs.head_size, needs.head_size_v or needs.head_size)
    if any(size % INT8_HEAD_SIZE_MULTIPLE for size in sizes):
        return (
            f"head sizes must be multiples of {INT8_HEAD_SIZE_MULTIPLE} with a cache of eight "
            f"bits, got {needs.head_size}"
        )
    if needs.block_size is not None and needs.block_size % INT8_PAGE_MULTIPLE:
        return (
            f"cache blocks of eight bits must be multiples of {INT8_PAGE_MULTIPLE} tokens, got "
            f"{needs.block_size}; set --block-size"
        )
    return None


def _reason_of_kind(needs: LayerNeeds) -> str | None:
    if needs.selected not in (None, "CUSTOM"):
        return f"the engine was asked for the backend {needs.selected}"
    if needs.attn_type not in (None, DECODER):
        return f"only attention of decoders is served, got {needs.attn_type}"
    for present, what in (
        (needs.is_mla, "multi-head latent attention"),
        (needs.is_sparse, "sparse attention"),
        (needs.is_compressed, "attention over compressed keys"),
        (needs.has_mm_prefix, "two-way attention within images"),
        (needs.has_head_scales, "a checkpoint with cache scales per head"),
        (needs.has_context_parallel, "context parallelism"),
        (needs.has_reference_window, "a window that spares the prompt"),
        (needs.has_device_query_lens, "query lengths that the device decides (adaptive drafts)"),
        (needs.is_non_causal and needs.has_window, "a window without a causal mask"),
    ):
        if present:
            return f"{what} is not served"
    return None
