"""``FA_TRITON_CPU``: the same calls without kernels, and kernels under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fa_triton import chunk_kda, chunk_kda_fwd, kda_gate_cumsum
from fa_triton.device import CPU_MODE_VARIABLE
from tests.kda.budget import oracle
from tests.kda.problems import OUTPUTS, KdaProblem

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

PACKED = KdaProblem(
    head_dims=(64, 32), heads=(1, 2), lengths=(70, 0, 1, 65), packed=True, layout="TND"
)
SLOTS = torch.tensor([5, 1, -1, 0], dtype=torch.int32)


INTERPRETED = """
from fa_triton import chunk_kda_fwd
from tests.kda.budget import assert_accurate
from tests.kda.problems import OUTPUTS, KdaProblem

small = KdaProblem(chunk_size=16, head_dims=(16, 32), lengths=(21, 0, 3), packed=True, l2norm=True)
for problem in (
    small.but(layout="TND", gate="softplus"),
    small.but(layout="BNSD", gate="bounded", chunk_size=128, lengths=(130,), state_v_first=True),
):
    arguments = problem.arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert_accurate(results, arguments, has_absolute_limits=False)
print("done")
"""


@pytest.fixture
def _reference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_MODE_VARIABLE, "reference")
    monkeypatch.setattr("fa_triton.launch.Runner._launch", _refuse)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("launched")


@pytest.mark.usefixtures("_reference_mode")
@pytest.mark.parametrize(
    "problem", [PACKED, PACKED.but(layout="NTD", gate="given", state_v_first=True, l2norm=True)]
)
def test_results_are_the_rounded_oracle(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    exact = oracle(arguments)
    for name in OUTPUTS:
        got, wanted = getattr(results, name), getattr(exact, name)
        dtype = torch.float32 if name in ("gk", "final_state") else torch.bfloat16
        assert got.dtype == dtype, name
        assert torch.equal(got, wanted.to(dtype)), name
    assert results.initial_state is arguments["initial_state"]


@pytest.mark.usefixtures("_reference_mode")
def test_sums_of_gates() -> None:
    arguments = PACKED.but(gate="given").arguments()
    gk = kda_gate_cumsum(arguments["g"], 64, layout="TND", cu_seqlens=arguments["cu_seqlens"])
    assert gk.dtype == torch.float32
    assert torch.equal(gk, oracle(arguments).gk.float())


@pytest.mark.usefixtures("_reference_mode")
@pytest.mark.parametrize("masked", [False, True])
def test_a_pool(masked: bool) -> None:
    arguments = PACKED.arguments()
    states = arguments["initial_state"]
    has_state = torch.tensor([True, True, True, not masked])
    cleared = states.clone()
    cleared[2] = 0
    cleared[~has_state] = 0
    exact = oracle(arguments | {"initial_state": cleared})
    pool = torch.full((7, *states.shape[1:]), 3.0)
    pool[SLOTS[SLOTS >= 0]] = states[SLOTS >= 0]
    expected = pool.clone()
    running = [0, 3]
    expected[SLOTS[running]] = exact.final_state[running].float()
    out, got = chunk_kda(
        **arguments | {"initial_state": pool},
        ssm_state_indices=SLOTS,
        has_initial_state=has_state if masked else None,
        output_final_state=True,
    )
    assert got is pool
    assert torch.equal(pool, expected)
    assert torch.equal(out, exact.attn_out.bfloat16())


@pytest.mark.usefixtures("_reference_mode")
def test_sequences_without_a_state() -> None:
    arguments = PACKED.arguments()
    before = arguments["initial_state"].clone()
    cleared = before.clone()
    cleared[0] = 0
    exact = oracle(arguments | {"initial_state": cleared})
    has_state = torch.tensor([False, True, True, True])
    out, state = chunk_kda(**arguments, has_initial_state=has_state, output_final_state=True)
    assert torch.equal(out, exact.attn_out.bfloat16())
    assert torch.equal(state, exact.final_state.float())
    assert torch.equal(arguments["initial_state"], before)


@pytest.mark.slow
def test_the_interpreter_runs_the_same_kernels(repo_root: Path) -> None:
    environment = os.environ | {CPU_MODE_VARIABLE: "interpreter", "PYTHONPATH": str(repo_root)}
    process = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert process.stdout == "done\n", process.stderr
