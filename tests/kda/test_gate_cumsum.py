"""``kda_gate_cumsum``: sums of gates of each chunk, head-major."""

from __future__ import annotations

import pytest
import torch

from fa_triton import chunk_kda_fwd, kda_gate_cumsum
from fa_triton.kda_reference import kda_gate_cumsum_reference
from tests.kda.budget import GK_LIMIT
from tests.kda.problems import GATES, LAYOUTS, KdaProblem

OPTIONS = ("A_log", "dt_bias", "cu_seqlens", "use_gate_in_kernel", "safe_gate", "lower_bound")
SMALL = KdaProblem(head_dims=(64, 32), heads=(1, 2), lengths=(70, 70))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("nan_filled_memory")
def test_sums_are_as_exact_as_float32(layout: str, gate: str) -> None:
    problem = SMALL.but(layout=layout, gate=gate, lengths=(3, 0, 64, 65, 1), packed=True)
    arguments = problem.arguments()
    options = {name: arguments[name] for name in OPTIONS if name in arguments}
    gk = kda_gate_cumsum(arguments["g"], 64, layout=layout, **options)
    exact = kda_gate_cumsum_reference(arguments["g"], 64, layout=layout, **options)
    assert gk.dtype == torch.float32
    assert gk.shape == exact.shape
    assert gk.is_contiguous()
    assert (gk - exact).norm() <= GK_LIMIT * exact.norm()


def test_the_default_layout_is_head_major() -> None:
    g = SMALL.but(gate="given", layout="BNSD").arguments()["g"]
    assert torch.equal(kda_gate_cumsum(g, 64), kda_gate_cumsum(g, 64, layout="BNSD"))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_forward_returns_the_same_sums(gate: str, dtype: torch.dtype) -> None:
    arguments = SMALL.but(gate=gate, g_dtype=dtype).arguments()
    options = {name: arguments[name] for name in OPTIONS if name in arguments}
    gk = kda_gate_cumsum(arguments["g"], 64, layout="BSND", **options)
    whole = chunk_kda_fwd(**arguments, outputs=("gk",)).gk
    assert whole is not None
    assert torch.equal(gk, whole)


@pytest.mark.parametrize("chunk_size", [16, 32, 128])
def test_chunk_sizes(chunk_size: int) -> None:
    arguments = SMALL.but(gate="softplus", lengths=(150,)).arguments()
    options = {name: arguments[name] for name in OPTIONS if name in arguments}
    gk = kda_gate_cumsum(arguments["g"], chunk_size, layout="BSND", **options)
    exact = kda_gate_cumsum_reference(arguments["g"], chunk_size, layout="BSND", **options)
    assert (gk - exact).norm() <= GK_LIMIT * exact.norm()


@pytest.mark.parametrize("gate", ["softplus", "bounded"])
def test_arguments_of_any_size_stay_finite(gate: str) -> None:
    problem = SMALL.but(gate=gate, lengths=(16,), has_dt_bias=False)
    arguments = problem.arguments()
    g = arguments["g"]
    g[..., :8] = torch.tensor([0.0, -1e30, 1e30, 89.0, -89.0, 104.0, -104.0, 1e-30])
    options = {name: arguments[name] for name in OPTIONS if name in arguments}
    gk = kda_gate_cumsum(g, 16, layout="BSND", **options)
    exact = kda_gate_cumsum_reference(g, 16, layout="BSND", **options)
    assert torch.isfinite(gk).all()
    torch.testing.assert_close(gk.double(), exact, rtol=2e-6, atol=1e-35)
    assert (gk <= 0).all()
