"""Paged K and V: the block table and the page size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.layout import FRACTAL, Extents, is_paged
from fa_triton.validation.scalars import as_int
from fa_triton.validation.tensors import check_small_tensor

MAX_PAGE_SIZE = 1024


@dataclass(frozen=True)
class Pages:
    """Checked paging: page size and table width, both 0 without pages."""

    page_size: int
    pages_per_sequence: int

    @property
    def capacity(self) -> int:
        """Tokens that one row of the block table can hold."""
        return self.page_size * self.pages_per_sequence


def check_pages(
    layout_kv: str,
    block_table: object,
    k_extents: Extents,
    v_extents: Extents,
    batch_size: int,
    device: torch.device,
) -> Pages:
    """Check that pages and ``block_table`` come together and fit."""
    if not is_paged(layout_kv):
        if block_table is not None:
            raise ValueError(
                f"`block_table` must be None with layout_kv={layout_kv!r} (it belongs to the "
                f"paged layouts PA_*), got a tensor"
            )
        return Pages(0, 0)
    if block_table is None:
        raise ValueError(f"`block_table` must be given with layout_kv={layout_kv!r}, got None")
    table = check_small_tensor(
        "block_table",
        block_table,
        dtype=torch.int32,
        shape=(batch_size, None),
        device=device,
        meaning=f"({batch_size}, pages per sequence)",
        rows_apart=True,
    )
    page_size = k_extents.tokens
    check_page_multiple("the page size of k", page_size)
    if layout_kv == "PA_NZ":
        for name, head_dim in (("k", k_extents.head_dim), ("v", v_extents.head_dim)):
            if head_dim % FRACTAL:
                raise ValueError(
                    f"the head dim of {name} must be a multiple of {FRACTAL} in layout PA_NZ, "
                    f"got {head_dim}"
                )
    return Pages(page_size, table.shape[1])


def check_page_size(layout_kv: str, page_size: object) -> int:
    """Check the page size that a plan is made for; 0 where it is not known."""
    if page_size is None:
        return 0
    size = as_int("page_size", page_size)
    if not is_paged(layout_kv):
        raise ValueError(
            f"`page_size` must be None with layout_kv={layout_kv!r} (it belongs to the paged "
            f"layouts PA_*), got {size}"
        )
    check_page_multiple("`page_size`", size)
    return size


def check_page_multiple(subject: str, size: int, multiple: int = 16) -> None:
    """Pages hold a multiple of 16 tokens, up to 1024; some caches ask for a larger multiple."""
    if not multiple <= size <= MAX_PAGE_SIZE or size % multiple:
        raise ValueError(
            f"{subject} must be a multiple of {multiple} from {multiple} to {MAX_PAGE_SIZE}, got "
            f"{size}"
        )
