"""``atten_mask`` and ``pse_shift`` of ``incre_flash_attention``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.incremental_problem import MaskForm
from fa_triton.validation.optional_tensors import as_given
from fa_triton.validation.tensors import check_dense_last_axis, check_device, refuse_gradient

MASK_DTYPES = (torch.bool, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Rows:
    """What masks and biases are compared with.

    Attributes:
        batch_size: B.
        num_heads: Query heads N.
        tokens: Query tokens.
    """

    batch_size: int
    num_heads: int
    tokens: int


@dataclass(frozen=True)
class BiasShape:
    """Axes of a bias, all 0 where there is none."""

    batch: int = 0
    heads: int = 0
    rows: int = 0


def check_atten_mask(
    atten_mask: object, rows: Rows, columns: int, device: torch.device
) -> tuple[MaskForm | None, int]:
    """Check the mask against the rows.

    Args:
        atten_mask: The argument.
        rows: Sequences, heads and tokens of the query.
        columns: Columns that it must have at least.
        device: Of the query.

    Returns:
        What has a row of its own, and the columns; None and 0 without a mask.
    """
    mask = as_given("atten_mask", atten_mask)
    if mask is None:
        return None, 0
    if mask.dtype not in MASK_DTYPES:
        raise TypeError(f"`atten_mask` must have dtype bool, int8 or uint8, got {mask.dtype}")
    check_device("atten_mask", mask, device, like="query")
    shape = tuple(mask.shape)
    form = _mask_form(shape, rows)
    if form is None:
        raise ValueError(f"`atten_mask` must have shape {_mask_shapes(rows)}, got {shape}")
    _check_columns("atten_mask", shape, columns)
    check_dense_last_axis("atten_mask", mask)
    return form, shape[-1]


def check_pse_shift(
    pse_shift: object, rows: Rows, columns: int, dtype: torch.dtype, device: torch.device
) -> BiasShape:
    """Check the bias of the logits against the rows and return its axes."""
    bias = as_given("pse_shift", pse_shift)
    if bias is None:
        return BiasShape()
    if bias.dtype != dtype:
        raise TypeError(f"`pse_shift` must have the dtype of query, {dtype}, got {bias.dtype}")
    refuse_gradient("pse_shift", bias)
    check_device("pse_shift", bias, device, like="query")
    shape = tuple(bias.shape)
    fits = (
        len(shape) == 4
        and shape[0] in (1, rows.batch_size)
        and shape[1] == rows.num_heads
        and shape[2] in (1, rows.tokens)
    )
    if not fits:
        per_token = "" if rows.tokens == 1 else f", or with {rows.tokens} rows instead of 1"
        raise ValueError(
            f"`pse_shift` must have shape ({rows.batch_size}, {rows.num_heads}, 1, S') or "
            f"(1, {rows.num_heads}, 1, S'){per_token}, got {shape}"
        )
    _check_columns("pse_shift", shape, columns)
    check_dense_last_axis("pse_shift", bias)
    return BiasShape(*shape[:3])


def _mask_form(shape: tuple[int, ...], rows: Rows) -> MaskForm | None:
    batch, heads, tokens = rows.batch_size, rows.num_heads, rows.tokens
    if len(shape) not in (2, 3, 4):
        return None
    leading = (*shape[:-1], 1, 1)[:3]
    if leading == (batch, 1, 1):
        return "per_sequence"
    if len(shape) < 4 or leading[0] not in (1, batch) or leading[1] not in (1, heads):
        return None
    if leading[2] == tokens > 1:
        return "per_query"
    return "per_head" if leading[1:] == (heads, 1) else None


def _mask_shapes(rows: Rows) -> str:
    b, n = rows.batch_size, rows.num_heads
    shapes = [
        f"({b}, S')",
        f"({b}, 1, S')",
        f"({b}, 1, 1, S')",
        f"({b}, {n}, 1, S')",
        f"(1, {n}, 1, S')",
    ]
    told = f"{', '.join(shapes[:-1])} or {shapes[-1]}"
    if rows.tokens > 1:
        told += f"; for a row per query token one of (1 or {b}, 1 or {n}, {rows.tokens}, S')"
    return told


def _check_columns(name: str, shape: tuple[int, ...], columns: int) -> None:
    if shape[-1] < columns:
        raise ValueError(
            f"`{name}` must have at least {columns} columns, one per key that may be read, got "
            f"{shape[-1]} in shape {shape}"
        )
