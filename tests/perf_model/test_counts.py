"""Counts of small kernels, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perf.model.counts import Counts, count
from perf.model.interpreter import Launch, execute
from perf.model.stream import Registers, Transfer
from tests.perf_model.excerpts import mixed_streams, module, vector_streams


@pytest.mark.parametrize("tiles", [1, 3, 10])
def test_vector_kernel(tiles):
    found = count(vector_streams(tiles))
    assert found.scalar_operations > 0
    # a tile is 4 rows of 96 fp32 numbers: 1536 bytes, two steps per row, six if dense; the first
    # is reduced, with one fold of two steps and one of a register per row, the others are scaled
    assert replace(found, scalar_operations=0) == Counts(
        path_bytes={"gm_to_ub": 1536 * tiles, "ub_to_gm": 1536 * tiles},
        caller_read=1536 * tiles,
        caller_written=1536 * tiles,
        transfers=2 * tiles,
        vector_repeats={
            "vexp": 8 * tiles,
            "vreduce": 4,
            **({"vmuls": 6 * (tiles - 1)} if tiles > 1 else {}),
        },
        vector_reductions=4,
        vector_calls=2 * tiles,
        flag_waits=2 * tiles,
        barriers=tiles,
        scalar_loads=1,
    )


def test_rows_apart_are_bursts_of_their_own():
    moves = [e for e in vector_streams(1).vectors[0] if isinstance(e, Transfer)]
    assert [(move.rows, move.memory, move.is_write) for move in moves] == [
        (4, "caller", False),
        (4, "caller", True),
    ]


def test_mixed_kernel():
    found = count(mixed_streams())
    assert found.path_bytes == {
        "gm_to_l1": 2 * 32 * 128 * 2,
        "l1_to_l0a": 2 * 16 * 128 * 2,
        "l1_to_l0b": 2 * 32 * 128 * 2,
        "l0c_to_gm": 2 * 16 * 32 * 4,
        # half of the rows for each vector core
        "gm_to_ub": 2 * 2 * 8 * 32 * 4,
    }
    assert found.caller_read == 2 * 32 * 128 * 2
    assert found.caller_written == 0
    assert found.workspace_written == found.workspace_read == 2 * 16 * 32 * 4
    assert found.macs == 2 * 16 * 128 * 32
    assert found.cube_steps == 2 * (16 // 16) * (128 // 16) * (32 // 16)
    assert found.core_waits == 2 * 2
    # per product: operand, buffer of L0, its two buffers at the end, operands in L0, accumulator
    assert found.flag_waits == 2 * 6


def test_vector_functions_of_registers():
    launch = Launch(names=("n",), scalars={"n": 1}, contents={})
    (event,) = [
        e for e in execute(module("registers"), launch).vectors[0] if isinstance(e, Registers)
    ]
    assert event == Registers("add_outlined_vf_0", 8, 8, simple=8, special=8, reductions=0)
    assert count(execute(module("registers"), launch)).registers == 4 * 8
