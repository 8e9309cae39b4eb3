"""Blocks of an unbounded gate that fp32 holds as they are, and steep ones, side by side."""

from __future__ import annotations

import pytest
import torch

from fa_triton import chunk_kda_fwd
from fa_triton.delta_rule.tables import chunk_tables
from fa_triton.launch import runner
from tests.kda.budget import assert_accurate
from tests.kda.problems import OUTPUTS, KdaProblem

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

ROWS = 16
# log2 that a block may fall by, and natural-log decays per token on both sides of it
LARGEST_SPAN = 108.0
FLAT, STEEP = -4.9, -5.1
SMALL = KdaProblem(lengths=(150,), head_dims=(64, 64), heads=(1, 2), gate="given")


@pytest.mark.parametrize(("tokens", "chunk_size", "key_dim"), [(150, 64, 48), (70, 32, 80)])
def test_a_block_is_steep_if_one_column_falls_too_far(
    tokens: int, chunk_size: int, key_dim: int
) -> None:
    from fa_triton.kernels.kda_prepare_spans import kda_prepare_spans

    tables = chunk_tables(
        batch_size=1,
        num_tokens=tokens,
        chunk_size=chunk_size,
        device=torch.device("cpu"),
        cu_seqlens=None,
        chunk_indices=None,
    )
    decays = torch.rand(2, tokens, key_dim) * 0.1
    decays[:, 20:40, 3] = LARGEST_SPAN / 14
    decays[0, 64:70, -1] = 1.2 * LARGEST_SPAN / 5
    gk = -decays.cumsum(1)
    blocks = chunk_size // ROWS
    found = torch.full((tables.num_chunks, 2, blocks), -1, dtype=torch.int32)
    runner(kda_prepare_spans)[(1,)](
        gk=gk,
        chunks=tables.chunks,
        is_steep=found,
        num_tasks=2 * tables.num_chunks,
        num_tokens=tokens,
        num_v_heads=2,
        K=key_dim,
        CHUNK=chunk_size,
        BLOCK_K=32,
    )
    seen = 0
    for first in range(0, tokens, ROWS):
        span = (gk[:, first] - gk[:, min(first + ROWS, tokens) - 1]).amax(-1)
        expected = (span > LARGEST_SPAN).int()
        seen += int(expected.sum())
        block = found[first // chunk_size, :, first % chunk_size // ROWS]
        assert torch.equal(block, expected)
    assert seen


@pytest.mark.parametrize("chunk_size", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_both_kinds_of_block_in_one_chunk(chunk_size: int, dtype: torch.dtype) -> None:
    arguments = SMALL.but(chunk_size=chunk_size, dtype=dtype).arguments()
    # every other block is steep in one column, the others are as steep as they may be
    arguments["g"][..., 5] = FLAT
    for first in range(0, 150, 2 * ROWS):
        arguments["g"][:, first : first + ROWS, :, 5] = STEEP
    assert_accurate(chunk_kda_fwd(**arguments, outputs=OUTPUTS), arguments)


def test_the_largest_numbers_of_fp16_in_the_steepest_flat_block() -> None:
    arguments = SMALL.but(dtype=torch.float16, has_initial_state=False).arguments()
    arguments["g"].fill_(FLAT)
    arguments["k"][:, 15::16] = 0
    arguments["k"][:, 15::16, :, 0] = 6e4
    arguments["beta"].fill_(1e-9)
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert torch.isfinite(getattr(results, name)).all(), name
