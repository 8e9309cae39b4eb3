"""Every result of the chunked forward against float64, over its options."""

from __future__ import annotations

import pytest
import torch

from fa_triton import chunk_kda_fwd
from tests.kda.budget import assert_accurate
from tests.kda.problems import GATES, OUTPUTS, KdaProblem

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

BF16, FP16 = torch.bfloat16, torch.float16

SMALL = KdaProblem(lengths=(150,), head_dims=(64, 64), heads=(1, 2))
SERVED = KdaProblem(
    lengths=(70, 0, 1, 130), packed=True, head_dims=(128, 128), heads=(2, 2), layout="TND"
).but(state_v_first=True, l2norm=True)


def run(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert torch.isfinite(getattr(results, name)).all(), name
    # sums over few columns average less: there only the emulation says what is good
    assert_accurate(results, arguments, has_absolute_limits=min(problem.head_dims) >= 64)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("gate", GATES)
def test_gates(gate: str, dtype: torch.dtype) -> None:
    run(SMALL.but(gate=gate, dtype=dtype))


@pytest.mark.parametrize("gate", GATES)
def test_packed_sequences_as_they_are_served(gate: str) -> None:
    run(SERVED.but(gate=gate))


@pytest.mark.parametrize(
    "problem",
    [
        SMALL.but(l2norm=True),
        SMALL.but(raw_beta=True),
        SMALL.but(raw_beta=True, allow_neg_eigval=True, l2norm=True),
        SMALL.but(g_dtype=BF16),
        SMALL.but(beta_dtype=BF16),
        SMALL.but(g_dtype=BF16, beta_dtype=BF16, raw_beta=True),
        SMALL.but(has_initial_state=False),
        SMALL.but(has_dt_bias=False),
        SMALL.but(gate="bounded", lower_bound=-0.5),
        SMALL.but(state_v_first=True),
        SMALL.but(heads=(2, 6)),
        SMALL.but(lengths=(150, 150)),
    ],
    ids=lambda problem: str(problem),
)
def test_options(problem: KdaProblem) -> None:
    run(problem)


@pytest.mark.parametrize("chunk_size", [16, 32, 64, 128])
@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_chunk_sizes(chunk_size: int, gate: str) -> None:
    run(SMALL.but(chunk_size=chunk_size, gate=gate, lengths=(300,), heads=(1, 1)))


@pytest.mark.parametrize(
    ("head_dims", "chunk_size"),
    [
        ((16, 48), 64),
        ((48, 16), 64),
        ((80, 96), 64),
        ((96, 80), 16),
        ((128, 192), 64),
        ((192, 128), 128),
        ((256, 256), 64),
        ((256, 64), 128),
    ],
)
def test_head_dims(head_dims: tuple[int, int], chunk_size: int) -> None:
    gate = "bounded" if head_dims[0] % 32 else "softplus"
    v_first = head_dims[0] > head_dims[1]
    problem = SMALL.but(head_dims=head_dims, gate=gate, state_v_first=v_first, heads=(1, 1))
    run(problem.but(chunk_size=chunk_size, lengths=(2 * chunk_size + 5,)))


@pytest.mark.parametrize("tail", [*range(1, 16), 17, 31, 33, 63])
def test_tails(tail: int) -> None:
    run(SMALL.but(lengths=(64 + tail,), heads=(1, 1)))
    run(SMALL.but(lengths=(tail,), heads=(1, 1), gate="bounded"))
