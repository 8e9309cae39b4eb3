"""Predicted cycles: never below the work of a pipe, never less for a larger constant."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from fa_triton.targets import A2
from perf.model.costs import SETS, CostModel, Latencies, constants
from perf.model.interpreter import Streams
from perf.model.stream import CoreSync, Flag, Scalar, Vector
from perf.model.timeline import DeadlockError, predict
from tests.perf_model.excerpts import mixed_streams, vector_streams

STREAMS = {"vector": vector_streams(5), "mixed": mixed_streams()}
_TIMES = [
    name
    for name, kind in Latencies.__annotations__.items()
    if kind == "float" and "_to_gm" not in name
]
everywhere = pytest.mark.parametrize("name", STREAMS)


def costs(name="nominal", source="memory"):
    return CostModel.of(A2, name, source)


def with_latencies(model, **changes):
    return replace(model, latencies=msgspec.structs.replace(model.latencies, **changes))


@everywhere
@settings(max_examples=60, deadline=None)
@given(constant=st.sampled_from(_TIMES), factor=st.floats(1.0, 5.0), start=st.sampled_from(SETS))
def test_no_time_falls_when_a_latency_grows(name, constant, factor, start):
    model = costs(start)
    grown = with_latencies(model, **{constant: getattr(model.latencies, constant) * factor})
    assert predict(STREAMS[name], grown).cycles >= predict(STREAMS[name], model).cycles


@everywhere
@settings(max_examples=30, deadline=None)
@given(path=st.sampled_from(sorted(constants().families["A2"].paths)), factor=st.floats(0.2, 1.0))
def test_no_time_falls_when_a_path_is_slower(name, path, factor):
    model = costs()
    paths = {**model.family.paths, path: model.family.paths[path] * factor}
    slower = replace(model, family=msgspec.structs.replace(model.family, paths=paths))
    assert predict(STREAMS[name], slower).cycles >= predict(STREAMS[name], model).cycles


@everywhere
def test_starts_that_do_not_overlap_cost_time(name):
    together = with_latencies(costs(), dma_starts_overlap=True)
    apart = with_latencies(costs(), dma_starts_overlap=False)
    assert predict(STREAMS[name], apart).cycles >= predict(STREAMS[name], together).cycles


@everywhere
@pytest.mark.parametrize("constant_set", SETS)
def test_memory_is_no_faster_than_the_cache_and_no_pipe_is_overfull(name, constant_set):
    far = predict(STREAMS[name], costs(constant_set))
    near = predict(STREAMS[name], costs(constant_set, "cache"))
    assert far.cycles >= near.cycles
    for core in far.cores:
        assert all(0 < cycles <= core.cycles for cycles in core.busy.values())


def test_dependent_instructions_wait_and_independent_ones_do_not():
    step = Vector("vadd", "vadd_1d_float", repeats=4)
    head, slope, tail = constants().vector["vadd"]
    queued = Streams(None, [[step] * 10])
    model = with_latencies(costs(), issue=0.0)
    one = predict(Streams(None, [[step]]), model).cycles
    assert one == head + 4 * slope + tail
    assert predict(queued, model).cycles < 10 * one


def test_a_scalar_instruction_takes_what_the_set_says():
    model = with_latencies(costs(), scalar_operation=3.0, scalar_call=10.0, global_load=100.0)
    stream = [Scalar(operations=4, calls=1, loads=2)]
    assert predict(Streams(None, [stream]), model).cycles == 4 * 3 + 10 + 200


def test_a_flag_nobody_sets():
    wait = Flag(False, "V", "MTE3", "0")
    with pytest.raises(ValueError, match="set a flag before"):
        predict(Streams(None, [[wait]]), costs())


def test_cores_that_wait_for_each_other():
    wait = CoreSync(False, "FIX", "S", 1)
    with pytest.raises(DeadlockError, match="cube at 0 of 1"):
        predict(Streams([wait], [[wait], [wait]]), costs())


def test_a_cube_core_waits_for_both_vector_cores():
    given_by = [CoreSync(True, "V", "S", 1)]
    taken = [CoreSync(False, "V", "S", 1)]
    slow = [Scalar(operations=10_000), *given_by]
    early = predict(Streams(taken, [given_by, given_by]), costs()).cores[0].cycles
    late = predict(Streams(taken, [given_by, slow]), costs()).cores[0].cycles
    assert late > early + 10_000
    with pytest.raises(DeadlockError):
        predict(Streams(taken, [given_by, []]), costs())


def test_sets_are_ordered():
    for name in _TIMES:
        base, nominal, pess = (getattr(constants().sets[s], name) for s in SETS)
        assert base <= nominal <= pess
