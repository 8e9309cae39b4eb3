"""Scales and offsets of an int8 cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.incremental_problem import AntiquantMode
from fa_triton.validation.optional_tensors import as_given
from fa_triton.validation.scalars import one_of
from fa_triton.validation.tensors import check_dense_last_axis, check_device, refuse_gradient

MODES: tuple[AntiquantMode, ...] = ("per_tensor", "per_channel", "per_token", "per_token_head")
PER_TOKEN: tuple[AntiquantMode, ...] = ("per_token", "per_token_head")


@dataclass(frozen=True)
class CacheAxes:
    """Sizes that scales are compared with.

    Attributes:
        num_heads: Key/value heads.
        head_dim: D.
        outer: Sequences of a dense cache, pages of a paged one.
        tokens: Tokens that per-token scales must have: exactly a page, at least those of the
            longest sequence otherwise.
        is_paged: Whether the cache is paged.
    """

    num_heads: int
    head_dim: int
    outer: int
    tokens: int
    is_paged: bool


def check_antiquant(
    antiquant_scale: object,
    antiquant_offset: object,
    antiquant_mode: object,
    *,
    axes: CacheAxes,
    is_int8: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[AntiquantMode | None, bool]:
    """Check scales, offsets and their mode.

    Args:
        antiquant_scale: The argument; ``[0]`` is of the keys, ``[1]`` of the values.
        antiquant_offset: The argument.
        antiquant_mode: The argument; None lets the shape decide.
        axes: Sizes of the cache.
        is_int8: Whether the cache is int8.
        dtype: Of the query.
        device: Of the query.

    Returns:
        The mode, None for a cache that needs none, and whether there are offsets.
    """
    scale = as_given("antiquant_scale", antiquant_scale)
    offset = as_given("antiquant_offset", antiquant_offset)
    mode = None if antiquant_mode is None else one_of("antiquant_mode", antiquant_mode, MODES)
    if not is_int8:
        for name, given in (
            ("antiquant_scale", scale),
            ("antiquant_offset", offset),
            ("antiquant_mode", mode),
        ):
            if given is not None:
                raise ValueError(
                    f"`{name}` must be None with key and value of {dtype} (it belongs to an int8 "
                    f"cache), got {_told(given)}"
                )
        return None, False
    if scale is None:
        raise ValueError(
            "`antiquant_scale` must be given with int8 key and value, got None; use (2,) ones for "
            "integers that stand for themselves"
        )
    found = _mode_of(scale, mode, axes)
    _check_tensor("antiquant_scale", scale, found, dtype, device)
    if offset is not None:
        _check_tensor("antiquant_offset", offset, found, dtype, device)
        if offset.shape != scale.shape:
            raise ValueError(
                f"`antiquant_offset` must have the shape of antiquant_scale, "
                f"{tuple(scale.shape)}, got {tuple(offset.shape)}"
            )
    return found, offset is not None


def _told(given: object) -> str:
    return "a tensor" if isinstance(given, torch.Tensor) else repr(given)


def _mode_of(scale: torch.Tensor, mode: AntiquantMode | None, axes: CacheAxes) -> AntiquantMode:
    """The mode that was named, if the shape fits it, or the only one that the shape fits."""
    shape = tuple(scale.shape)
    fitting: list[AntiquantMode] = [name for name in MODES if _fits(name, shape, axes)]
    if mode is not None:
        if mode in fitting:
            return mode
        raise ValueError(
            f"`antiquant_scale` must have shape {_shapes(mode, axes)} with "
            f"antiquant_mode={mode!r}, got {shape}"
        )
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        known = "; ".join(f"{_shapes(name, axes)} {name}" for name in MODES)
        raise ValueError(f"`antiquant_scale` must have one of the shapes {known}; got {shape}")
    raise ValueError(
        f"`antiquant_mode` must be given where the shape of antiquant_scale, {shape}, fits "
        f"{' and '.join(fitting)}, got None"
    )


def _fits(mode: str, shape: tuple[int, ...], axes: CacheAxes) -> bool:
    heads, dim = axes.num_heads, axes.head_dim
    if not shape or shape[0] != 2:
        return False
    if mode == "per_tensor":
        return shape == (2,)
    if mode == "per_channel":
        return shape in ((2, heads, 1, dim), (2, heads, dim), (2, heads * dim))
    leading = (2, axes.outer) if mode == "per_token" else (2, axes.outer, heads)
    if shape[:-1] != leading:
        return False
    return shape[-1] == axes.tokens if axes.is_paged else shape[-1] >= axes.tokens


def _shapes(mode: str, axes: CacheAxes) -> str:
    heads, dim = axes.num_heads, axes.head_dim
    if mode == "per_tensor":
        return "(2,)"
    if mode == "per_channel":
        return f"(2, {heads}, 1, {dim}), (2, {heads}, {dim}) or (2, {heads * dim})"
    leading = f"2, {axes.outer}" if mode == "per_token" else f"2, {axes.outer}, {heads}"
    return f"({leading}, {axes.tokens})" if axes.is_paged else f"({leading}, S' >= {axes.tokens})"


def _check_tensor(
    name: str,
    tensor: torch.Tensor,
    mode: AntiquantMode,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    wanted = torch.float32 if mode in PER_TOKEN else dtype
    if tensor.dtype != wanted:
        whose = "" if mode in PER_TOKEN else ", that of query,"
        raise TypeError(f"`{name}` must have dtype {wanted}{whose} {mode}, got {tensor.dtype}")
    refuse_gradient(name, tensor)
    check_device(name, tensor, device, like="query")
    if mode in PER_TOKEN:
        check_dense_last_axis(name, tensor)
