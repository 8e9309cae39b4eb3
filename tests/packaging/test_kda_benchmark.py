"""The benchmark of KDA: peers compute the same thing, wrong results are not timed, bytes add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fa_triton import chunk_kda
from perf.kda_bytes import phase_bytes
from perf.kda_peers import as_layout, peers
from perf.kda_phases import phase_calls
from perf.kda_workloads import WORKLOADS, check, make_inputs
from perf.timing import torch_threads


def small(name):
    """Return a workload with the structure of a named one and few short chunks."""
    return replace(WORKLOADS[name], num_tokens=192, num_heads=2, key_dim=32, value_dim=64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_peer_computes_the_workload(name, dtype):
    inputs = make_inputs(small(name), dtype)
    with torch_threads(1):
        for call in peers(inputs).values():
            assert check(inputs, as_layout(call(), inputs)).passed


def test_a_wrong_result_does_not_pass():
    inputs = make_inputs(small("bounded"), torch.bfloat16)
    result = as_layout(peers(inputs)["torch fp32"](), inputs)
    result[0, 5, 0] += 1.0
    assert not check(inputs, result).passed


@pytest.mark.forked
@pytest.mark.parametrize("name", WORKLOADS)
def test_our_call_is_exact_and_its_phases_repeat(name):
    inputs = make_inputs(small(name), torch.bfloat16)
    assert check(inputs, chunk_kda(*inputs.rows, **inputs.options)[0]).passed
    for call in phase_calls(inputs).values():
        call()
        call()


@pytest.mark.parametrize("device", ["A2", "A5", "cpu"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_no_phase_moves_less_than_it_must(name, device):
    counted = phase_bytes(WORKLOADS[name], device)
    assert all(phase.moved >= phase.compulsory for phase in counted)
    *phases, operator = counted
    assert operator.moved == pytest.approx(sum(phase.moved for phase in phases))


def test_bytes_of_one_chunk_by_hand():
    workload = replace(WORKLOADS["unbounded"], key_dim=128, value_dim=128, chunk_size=64)
    counted = {phase.phase: phase for phase in phase_bytes(workload, "A2")}
    # g in, gk out, a row of dt_bias per chunk
    assert counted["gate"].moved == 4 * 128 + 4 * 128 + 4 * 128 / 64
    # qg, Aqk, v_new, the result, and a state per chunk
    assert counted["finalize"].moved == 2 * (128 + 64 + 128 + 128) + 2 * 128 * 128 / 64
