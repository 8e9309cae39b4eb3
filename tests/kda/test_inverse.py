"""The inverse of the key matrix in float32, before it is stored in 16 bit."""

from __future__ import annotations

import pytest
import torch

from fa_triton.delta_rule.tables import chunk_tables
from fa_triton.launch import runner
from tests.kda.problems import one_thread

LIMIT = {16: 1e-6, 64: 1e-6, 128: 1e-5}


def key_matrix(tokens: int, beta: float, *, difference: float, decay: float) -> torch.Tensor:
    """Strictly lower ``Lkk [T, T]`` in float64 of keys that differ by ``difference``."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(1, 64, generator=generator, dtype=torch.float64)
    noise = torch.randn(tokens, 64, generator=generator, dtype=torch.float64)
    keys = torch.nn.functional.normalize(shared + difference * noise, dim=-1)
    place = torch.arange(tokens, dtype=torch.float64)
    kept = torch.exp(-decay * (place[:, None] - place[None]).clamp(min=0))
    return (beta * kept * (keys @ keys.mT)).tril(-1)


def inverted(Lkk: torch.Tensor, chunk_size: int, block: int) -> torch.Tensor:
    """Inverse of ``I + Lkk`` of one chunk by the kernels, from blocks, all results in float32."""
    from fa_triton.kernels.kda_prepare_inverse import kda_prepare_inverse
    from fa_triton.kernels.kda_prepare_merge import kda_prepare_merge

    tokens = len(Lkk)
    # forward substitution reads only what lies below the diagonal, a merge also the zeros above
    above = torch.nan if block == chunk_size else 0.0
    stored = torch.full((tokens, chunk_size), above)
    stored[:, :tokens] = torch.where(torch.ones_like(Lkk).tril(-1) > 0, Lkk, above)
    tables = chunk_tables(
        batch_size=1,
        num_tokens=tokens,
        chunk_size=chunk_size,
        device=stored.device,
        cu_seqlens=None,
        chunk_indices=None,
    )
    inverse = torch.full_like(stored, torch.nan)
    shared = {
        "Lkk": stored,
        "inverse": inverse,
        "chunks": tables.chunks,
        "num_tokens": tokens,
        "num_v_heads": 1,
        "CHUNK": chunk_size,
    }
    runner(kda_prepare_inverse)[(1,)](num_tasks=1, BLOCK_R=block, **shared)
    while block < chunk_size:
        runner(kda_prepare_merge)[(1,)](
            merged=inverse, num_tasks=chunk_size // (2 * block), HALF=block, **shared
        )
        block *= 2
    return inverse[:, :tokens]


@pytest.mark.parametrize("beta", [0.5, 0.95, 1.9])
@pytest.mark.parametrize("difference", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize(
    ("tokens", "chunk_size", "block"),
    [(16, 16, 16), (64, 64, 64), (64, 64, 32), (64, 64, 16), (37, 64, 16), (128, 128, 32)],
)
def test_forward_substitution_keeps_its_digits(
    tokens: int, chunk_size: int, block: int, difference: float, beta: float
) -> None:
    Lkk = key_matrix(tokens, beta, difference=difference, decay=1e-3).float()
    got = inverted(Lkk, chunk_size, block)
    eye = torch.eye(tokens, dtype=torch.float64)
    with one_thread():
        exact = torch.linalg.solve_triangular(
            eye + Lkk.double(), eye, upper=False, unitriangular=True
        )
    error = ((got.double() - exact).norm() / exact.norm()).item()
    assert error <= LIMIT[chunk_size]
    assert torch.equal(got.triu(1), torch.zeros_like(got))
    assert torch.equal(got.diagonal(), torch.ones(tokens))


@pytest.mark.parametrize("block", [16, 32, 64])
def test_a_tail_of_the_second_half(block: int) -> None:
    Lkk = key_matrix(70, 0.95, difference=1e-3, decay=0.0).float()
    got = inverted(Lkk, 128, block)
    eye = torch.eye(70, dtype=torch.float64)
    exact = torch.linalg.solve_triangular(eye + Lkk.double(), eye, upper=False, unitriangular=True)
    assert (got.double() - exact).norm() <= 1e-5 * exact.norm()
