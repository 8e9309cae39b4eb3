"""Query, key and value of ``incre_flash_attention``: layouts by name and rank, lists, heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.incremental_problem import InputLayout
from fa_triton.layout import FRACTAL, LAYOUT_SHAPES, LAYOUTS, extents
from fa_triton.validation.optional_tensors import as_given
from fa_triton.validation.pages import check_page_multiple
from fa_triton.validation.scalars import as_int, one_of
from fa_triton.validation.tensors import (
    check_batch_size,
    check_dense_last_axis,
    check_device,
    check_head_dim,
    check_heads,
    check_is_tensor,
    check_reach,
    refuse_gradient,
)

QUERY_DTYPES = (torch.float16, torch.bfloat16)
INPUT_LAYOUTS: tuple[InputLayout, ...] = ("BSH", "BSND", "BNSD")
# Layout of the four axes behind each name.
DENSE_LAYOUT: dict[str, str] = {"BSH": "BSND", "BSND": "BSND", "BNSD": "BNSD"}
PAGED_LAYOUT_OF_RANK = {3: "PA_BBND", 4: "PA_BNBD", 5: "PA_NZ"}
PAGED_SHAPES = "(P, page, Nkv*D), (P, Nkv, page, D) or (P, Nkv, D/16, page, 16)"
MAX_QUERY_TOKENS = 16
MAX_HEADS = 256
MAX_GROUP = 64
MAX_HEAD_DIM = 512
MAX_LIST = 256
MAX_BATCH = 65536
# An int8 page holds 32-byte rows of whole fractals.
INT8_PAGE_MULTIPLE = 32


@dataclass(frozen=True)
class QuerySizes:
    """Sizes of the query by meaning."""

    batch_size: int
    tokens: int
    num_heads: int
    head_dim: int


@dataclass(frozen=True)
class CacheSizes:
    """Sizes of key and value by meaning.

    Attributes:
        layout: BSND, BNSD or a paged one.
        tokens: Sequence axis; the longest of a list; tokens of a page.
        num_heads: Key/value heads.
        dtype: Of both.
        list_lengths: Sequence axes of a list, None for tensors.
        num_pages: Pages of a paged cache, else 0.
    """

    layout: str
    tokens: int
    num_heads: int
    dtype: torch.dtype
    list_lengths: tuple[int, ...] | None
    num_pages: int

    @property
    def is_int8(self) -> bool:
        """Whether the cache is quantised."""
        return self.dtype == torch.int8


def check_input_layout(input_layout: object) -> InputLayout:
    """Return the layout name."""
    return one_of("input_layout", input_layout, INPUT_LAYOUTS)


def check_query(query: object, layout: InputLayout, num_heads: object) -> QuerySizes:
    """Check the query, alone and against ``num_heads``."""
    tensor = check_query_form(query, layout)
    heads = as_int("num_heads", num_heads, minimum=1, maximum=MAX_HEADS)
    shape = tuple(tensor.shape)
    if 0 in shape:
        raise ValueError(f"`query` must have no empty axis, got shape {shape}")
    check_dense_last_axis("query", tensor)
    head_dim = _head_dim("query", shape, layout, "num_heads", heads)
    view = tensor.unflatten(-1, (heads, head_dim)) if layout == "BSH" else tensor
    sizes = extents(view, DENSE_LAYOUT[layout])
    check_head_dim("the head dim of query", head_dim, step=16, maximum=MAX_HEAD_DIM)
    check_batch_size("the batch size of query", sizes.outer, maximum=MAX_BATCH)
    if sizes.tokens > MAX_QUERY_TOKENS:
        raise ValueError(
            f"`query` must have 1 to {MAX_QUERY_TOKENS} tokens per sequence, got {sizes.tokens} in "
            f"shape {shape}; use flash_attn for longer ones"
        )
    return QuerySizes(sizes.outer, sizes.tokens, heads, head_dim)


def check_query_form(query: object, layout: InputLayout) -> torch.Tensor:
    """Check what does not depend on the sizes of the query: kind, dtype, rank, no gradient."""
    tensor = check_is_tensor("query", query)
    if tensor.dtype == torch.int8:
        raise NotImplementedError(
            "`query` must have dtype float16 or bfloat16, got torch.int8: int8 queries are not "
            "supported; pass the query as it was before its quantisation"
        )
    if tensor.dtype not in QUERY_DTYPES:
        raise TypeError(f"`query` must have dtype float16 or bfloat16, got {tensor.dtype}")
    refuse_gradient("query", tensor)
    if tensor.ndim != (3 if layout == "BSH" else 4):
        raise ValueError(
            f"`query` must have shape {_shape_of(layout)} in input_layout {layout}, got "
            f"{tuple(tensor.shape)}"
        )
    return tensor


def check_cache_form(name: str, cache: object, query: torch.Tensor) -> None:
    """Check what does not depend on the sizes of key or value: kind, dtype, no gradient."""
    for tensor in _as_tensors(name, cache):
        _check_dtype(name, tensor, query)
        refuse_gradient(name, tensor)


def check_kv_heads(num_key_value_heads: object, num_heads: int) -> int:
    """Return the key/value heads; 0 means those of the query."""
    given = as_int("num_key_value_heads", num_key_value_heads, minimum=0, maximum=MAX_HEADS)
    heads = given or num_heads
    check_heads("`num_heads`", num_heads, heads)
    if num_heads // heads > MAX_GROUP:
        raise ValueError(
            f"`num_heads` must be at most {MAX_GROUP} times num_key_value_heads, got {num_heads} "
            f"and {heads}"
        )
    return heads


def check_cache(
    key: object,
    value: object,
    query: torch.Tensor,
    sizes: QuerySizes,
    layout: InputLayout,
    num_kv_heads: int,
    *,
    is_paged: bool,
) -> CacheSizes:
    """Check key and value against the query; with ``is_paged`` their rank names the layout."""
    keys, values = _as_tensors("key", key), _as_tensors("value", value)
    if len(keys) != len(values):
        raise ValueError(
            f"`value` must hold as many tensors as key, got {len(values)} and {len(keys)}"
        )
    is_list = len(keys) > 1
    if is_list:
        _check_list(len(keys), sizes.batch_size, is_paged)
    found = [
        _check_one(name, tensor, query, sizes, layout, num_kv_heads, is_list, is_paged)
        for name, tensors in (("key", keys), ("value", values))
        for tensor in tensors
    ]
    for index, (k, v) in enumerate(zip(keys, values, strict=True)):
        _check_pair(k, v, f"[{index}]" if is_list else "")
    for tensor in keys[1:]:
        if tensor.dtype != keys[0].dtype:
            raise TypeError(
                f"`key` must hold tensors of one dtype, got {keys[0].dtype} and {tensor.dtype}"
            )
    lengths = tuple(tokens for _, tokens, _ in found[: len(keys)])
    if is_list:
        _check_list_is_read_alike(keys, values, lengths, layout)
    return CacheSizes(
        layout=found[0][0],
        tokens=max(lengths),
        num_heads=num_kv_heads,
        dtype=keys[0].dtype,
        list_lengths=lengths if is_list else None,
        num_pages=found[0][2] if is_paged else 0,
    )


def check_prefix(
    key: object, value: object, query: torch.Tensor, cache: CacheSizes, head_dim: int
) -> int:
    """Check the shared prefix, ``(1, Nkv, Sp, D)`` in every input layout; return Sp, 0 for none."""
    key, value = as_given("key_shared_prefix", key), as_given("value_shared_prefix", value)
    if key is None and value is None:
        return 0
    tensors = []
    for name, other, given in (
        ("key_shared_prefix", "value_shared_prefix", key),
        ("value_shared_prefix", "key_shared_prefix", value),
    ):
        if given is None:
            raise ValueError(f"`{name}` must be given with {other}, got None")
        tensor = given
        if tensor.dtype != cache.dtype:
            raise TypeError(
                f"`{name}` must have the dtype of key, {cache.dtype}, got {tensor.dtype}"
            )
        refuse_gradient(name, tensor)
        check_device(name, tensor, query.device, like="query")
        shape = tuple(tensor.shape)
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != (1, cache.num_heads, head_dim):
            raise ValueError(
                f"`{name}` must have shape (1, {cache.num_heads}, Sp, {head_dim}) in every "
                f"input_layout, got {shape}"
            )
        check_dense_last_axis(name, tensor)
        check_reach(name, tensor.stride(2), shape[2])
        tensors.append(tensor)
    if tensors[0].shape != tensors[1].shape:
        raise ValueError(
            f"`value_shared_prefix` must have the shape of key_shared_prefix, "
            f"{tuple(tensors[0].shape)}, got {tuple(tensors[1].shape)}"
        )
    return tensors[0].shape[2]


def _as_tensors(name: str, cache: object) -> list[torch.Tensor]:
    if isinstance(cache, torch.Tensor):
        return [check_is_tensor(name, cache)]
    if not isinstance(cache, (list, tuple)):
        raise TypeError(
            f"`{name}` must be a tensor or a list of tensors, got {type(cache).__name__}"
        )
    if not cache:
        raise ValueError(f"`{name}` must hold one tensor per sequence, got an empty list")
    return [check_is_tensor(f"{name}[{b}]", tensor) for b, tensor in enumerate(cache)]


def _check_list(count: int, batch_size: int, is_paged: bool) -> None:
    if is_paged:
        raise ValueError(
            f"`key` must be one tensor with block_table (pages are shared by all sequences), got a "
            f"list of {count}; pass the cache, or the list without block_table"
        )
    if count != batch_size:
        raise ValueError(
            f"`key` must hold one tensor per sequence, {batch_size} as query, got {count}"
        )
    if count > MAX_LIST:
        raise ValueError(
            f"`key` must hold at most {MAX_LIST} tensors, got {count}; use one tensor with "
            "actual_seq_lengths, or pages"
        )


def _check_list_is_read_alike(
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    lengths: tuple[int, ...],
    layout: InputLayout,
) -> None:
    """A kernel steps from token to token alike in all tensors of a list, one of which has some."""
    if not any(lengths):
        raise ValueError(
            "`key` must hold a tensor that has a key, got empty tensors only; use "
            "actual_seq_lengths of 0"
        )
    axis = 2 if layout == "BNSD" else 1
    for name, tensors in (("key", keys), ("value", values)):
        # the stride of an axis of one says nothing
        steps = {
            one.stride(axis) for one, tokens in zip(tensors, lengths, strict=True) if tokens > 1
        }
        if len(steps) > 1:
            told = ", ".join(map(str, sorted(steps)))
            raise ValueError(
                f"`{name}` must hold tensors of one stride from token to token, got {told}; call "
                ".contiguous() on each"
            )


def _check_one(
    name: str,
    tensor: torch.Tensor,
    query: torch.Tensor,
    sizes: QuerySizes,
    layout: InputLayout,
    num_kv_heads: int,
    is_list: bool,
    is_paged: bool,
) -> tuple[str, int, int]:
    """Check one tensor of the cache.

    Returns:
        Its layout, tokens and first axis.
    """
    _check_dtype(name, tensor, query)
    refuse_gradient(name, tensor)
    check_device(name, tensor, query.device, like="query")
    shape = tuple(tensor.shape)
    if is_paged:
        axes_name = PAGED_LAYOUT_OF_RANK.get(len(shape))
        if axes_name is None:
            raise ValueError(f"`{name}` must be {PAGED_SHAPES} with block_table, got shape {shape}")
        packs_heads = axes_name == "PA_BBND"
        expected = PAGED_SHAPES
    else:
        axes_name, packs_heads = DENSE_LAYOUT[layout], layout == "BSH"
        expected = _shape_of(layout)
        if len(shape) != (3 if packs_heads else 4):
            raise ValueError(
                f"`{name}` must have shape {expected} in input_layout {layout}, got {shape}; "
                "a paged cache needs block_table"
            )
    token_axis = LAYOUTS[axes_name].token
    if any(not size and not (is_list and axis == token_axis) for axis, size in enumerate(shape)):
        raise ValueError(
            f"`{name}` must have no empty axis, got shape {shape}; a sequence without keys has "
            "actual_seq_lengths 0"
        )
    check_dense_last_axis(name, tensor)
    if axes_name == "PA_NZ" and shape[-1] != FRACTAL:
        raise ValueError(
            f"`{name}` must have a last axis of {FRACTAL} in {LAYOUT_SHAPES['PA_NZ']}, got {shape}"
        )
    view = tensor
    if packs_heads:
        head_dim = _head_dim(name, shape, "BSH", "num_key_value_heads", num_kv_heads)
        view = tensor.unflatten(-1, (num_kv_heads, head_dim))
    found = extents(view, axes_name)
    if found.heads != num_kv_heads:
        raise ValueError(
            f"`{name}` must have {num_kv_heads} heads (num_key_value_heads, or num_heads where "
            f"that is 0) in shape {expected}, got {found.heads} in {shape}"
        )
    if found.head_dim != sizes.head_dim:
        raise ValueError(
            f"`{name}` must have the head dim of query, {sizes.head_dim}, got {found.head_dim} in "
            f"shape {shape}; rope parts beside the heads (latent attention) are not supported"
        )
    batch_size = 1 if is_list else sizes.batch_size
    if not is_paged and found.outer != batch_size:
        raise ValueError(
            f"`{name}` must have batch size {batch_size}"
            f"{' in a list' if is_list else ' as query'}, got {found.outer} in shape {shape}"
        )
    if is_paged:
        multiple = INT8_PAGE_MULTIPLE if tensor.dtype == torch.int8 else 16
        check_page_multiple(f"the page size of {name}", found.tokens, multiple)
    check_reach(name, view.stride(LAYOUTS[axes_name].token), found.tokens)
    return axes_name, found.tokens, found.outer


def _check_dtype(name: str, tensor: torch.Tensor, query: torch.Tensor) -> None:
    if tensor.dtype in (query.dtype, torch.int8):
        return
    if tensor.dtype in (torch.int32, torch.uint8) or "int4" in str(tensor.dtype):
        raise NotImplementedError(
            f"`{name}` must have the dtype of query, {query.dtype}, or int8, got {tensor.dtype}: "
            "an int4 cache is not supported; use an int8 one with antiquant_scale"
        )
    raise TypeError(
        f"`{name}` must have the dtype of query, {query.dtype}, or int8, got {tensor.dtype}"
    )


def _check_pair(key: torch.Tensor, value: torch.Tensor, index: str) -> None:
    if value.dtype != key.dtype:
        raise TypeError(
            f"`value{index}` must have the dtype of key, {key.dtype}, got {value.dtype}"
        )
    if value.shape != key.shape:
        raise ValueError(
            f"`value{index}` must have the shape of key, {tuple(key.shape)}, got "
            f"{tuple(value.shape)}"
        )


def _head_dim(
    name: str, shape: tuple[int, ...], layout: str, heads_name: str, num_heads: int
) -> int:
    """Head dim that a shape of any dense layout tells; its heads must be those of the argument."""
    if layout == "BSH":
        if shape[-1] % num_heads:
            raise ValueError(
                f"`{name}` must have a last axis of {heads_name} * D, a multiple of {num_heads}, "
                f"got shape {shape}"
            )
        return shape[-1] // num_heads
    heads = shape[LAYOUTS[layout].head]
    if heads != num_heads:
        raise ValueError(
            f"`{heads_name}` must be {heads}, the heads of {name} in layout {layout}, got "
            f"{num_heads}"
        )
    return shape[-1]


def _shape_of(layout: InputLayout) -> str:
    return "(B, S, N*D)" if layout == "BSH" else LAYOUT_SHAPES[layout]
