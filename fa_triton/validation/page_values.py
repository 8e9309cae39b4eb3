"""Values of ``block_table``: page ids where a sequence has keys."""

from __future__ import annotations

import numpy as np


def check_page_ids(
    block_table: np.ndarray, kv_lens: np.ndarray, *, page_size: int, num_pages: int
) -> None:
    """Check the entries that are used; those behind a sequence's last page may be anything.

    Args:
        block_table: Page ids on the host ``[B, pages per sequence]``.
        kv_lens: Key lengths ``[B]`` that the table has room for.
        page_size: Tokens of one page.
        num_pages: Pages of the cache.

    Raises:
        ValueError: A page that does not exist, with its position.
    """
    used = np.arange(block_table.shape[1]) < -(-kv_lens // page_size)[:, None]
    outside = used & ((block_table < 0) | (block_table >= num_pages))
    if outside.any():
        b, i = np.argwhere(outside)[0]
        raise ValueError(
            f"`block_table[{b}, {i}]` must lie between 0 and {num_pages - 1}, got "
            f"{block_table[b, i]}"
        )
