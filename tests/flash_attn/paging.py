"""Keys and values in the pages of a cache; everything that no sequence uses is NaN or rubbish."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.layout import FRACTAL

# Entries of a block table that no kernel may follow.
RUBBISH = (10**9, -1)
UNUSED_PAGES = 3
# Axes of [P, page, N, D] in the order of a layout; PA_NZ cuts D into two axes first.
_ORDER = {"PA_BBND": (0, 1, 2, 3), "PA_BNBD": (0, 2, 1, 3), "PA_NZ": (0, 2, 3, 1, 4)}


@dataclass(frozen=True)
class Paging:
    """How a cache is cut: its layout, the tokens of a page, spare columns of the block table."""

    layout: str = "PA_BBND"
    page_size: int = 64
    spare_columns: int = 2

    def __str__(self) -> str:
        return f"{self.layout}-{self.page_size}"

    def pages_of(self, length: int) -> int:
        """How many pages hold ``length`` tokens."""
        return -(-length // self.page_size)

    def table(
        self, lens: tuple[int, ...], room: tuple[int, ...], generator: torch.Generator
    ) -> torch.Tensor:
        """Scatter the used pages over the cache; the rest of the table is rubbish."""
        used = [self.pages_of(length) for length in lens]
        width = max(*(self.pages_of(length) for length in room), 1) + self.spare_columns
        table = torch.empty(len(lens), width, dtype=torch.int32)
        table[:, 0::2], table[:, 1::2] = RUBBISH
        pages = torch.randperm(sum(used) + UNUSED_PAGES, generator=generator).int()
        for row, ids in zip(table, pages[: sum(used)].split(used), strict=True):
            row[: len(ids)] = ids
        return table

    def cache(self, sequences: list[torch.Tensor], table: torch.Tensor) -> torch.Tensor:
        """Lay out sequences ``[length, N, D]`` on the pages that ``table`` names."""
        lens = [len(tokens) for tokens in sequences]
        count = sum(self.pages_of(length) for length in lens) + UNUSED_PAGES
        shape = (count, self.page_size, *sequences[0].shape[1:])
        dtype = sequences[0].dtype
        poison = torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max
        pages = torch.full(shape, poison, dtype=dtype)
        for tokens, row in zip(sequences, table.tolist(), strict=True):
            for page, part in zip(row, tokens.split(self.page_size), strict=False):
                if len(part):
                    pages[page, : len(part)] = part
        return self.from_rows(pages)

    def from_rows(self, pages: torch.Tensor) -> torch.Tensor:
        """Bring ``[P, page, N, D]`` into the layout."""
        if self.layout == "PA_NZ":
            pages = pages.unflatten(-1, (-1, FRACTAL))
        return pages.permute(_ORDER[self.layout]).contiguous()
