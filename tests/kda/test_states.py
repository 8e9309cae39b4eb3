"""``chunk_kda``: the result and the states alone, states in a pool."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import chunk_kda, chunk_kda_fwd
from tests.kda.problems import KdaProblem

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

SMALL = KdaProblem(
    head_dims=(64, 32), heads=(1, 2), lengths=(70, 0, 1, 130), packed=True, layout="TND"
)
SLOTS = torch.tensor([5, 1, 2, 0])


def forward(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    results = chunk_kda_fwd(**arguments, outputs=("attn_out", "final_state"))
    assert results.attn_out is not None
    assert results.final_state is not None
    return results.attn_out, results.final_state


def pool_of(states: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Seven slots with gaps between them, all NaN but those of the sequences."""
    room = torch.full((7, states[0].numel() + 64), torch.nan, dtype=dtype)
    pool = room[:, 32:-32].unflatten(1, states.shape[1:])
    pool[SLOTS] = states.to(dtype)
    return pool


@pytest.mark.parametrize("problem", [SMALL, SMALL.but(state_v_first=True, l2norm=True)], ids=str)
def test_the_same_numbers_as_the_forward(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    out, state = forward(arguments)
    got_out, got_state = chunk_kda(**arguments, output_final_state=True)
    assert torch.equal(got_out, out)
    assert torch.equal(got_state, state)
    got_out, got_state = chunk_kda(**arguments)
    assert torch.equal(got_out, out)
    assert got_state is None


def test_defaults() -> None:
    arguments = SMALL.arguments()
    expected = chunk_kda(**arguments)[0]
    # the scale is K^-0.5 and a chunk has 64 tokens
    del arguments["scale"], arguments["chunk_size"]
    assert torch.equal(chunk_kda(**arguments)[0], expected)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("state_v_first", [False, True])
def test_states_are_read_from_a_pool_and_written_back(
    state_v_first: bool, index_dtype: torch.dtype
) -> None:
    arguments = SMALL.but(state_v_first=state_v_first).arguments()
    out, state = forward(arguments)
    pool = pool_of(arguments["initial_state"])
    before = pool.clone()
    pooled = arguments | {"initial_state": pool, "ssm_state_indices": SLOTS.to(index_dtype)}
    got_out, got_pool = chunk_kda(**pooled)
    assert got_pool is None
    assert torch.equal(pool.nan_to_num(7.0), before.nan_to_num(7.0))
    assert torch.equal(got_out, out)
    got_out, got_pool = chunk_kda(**pooled, output_final_state=True)
    assert got_pool is pool
    assert torch.equal(got_out, out)
    expected = before.clone()
    expected[SLOTS] = state
    # slots of no sequence stay as they were
    assert torch.equal(pool.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_pool_of_16_bit(dtype: torch.dtype) -> None:
    arguments = SMALL.arguments()
    rounded = arguments["initial_state"].to(dtype)
    out, state = forward(arguments | {"initial_state": rounded.float()})
    pool = pool_of(rounded, dtype=dtype)
    pooled = arguments | {"initial_state": pool, "ssm_state_indices": SLOTS.int()}
    got_out, got_pool = chunk_kda(**pooled, output_final_state=True)
    assert got_pool is pool
    assert torch.equal(got_out, out)
    expected = state.to(dtype)
    # a sequence without tokens leaves its slot alone
    expected[1] = rounded[1]
    assert torch.equal(pool[SLOTS], expected)


def test_a_negative_index_is_no_state() -> None:
    arguments = SMALL.arguments()
    cleared = arguments["initial_state"].clone()
    cleared[[0, 3]] = 0
    out, state = forward(arguments | {"initial_state": cleared})
    pool = pool_of(arguments["initial_state"])
    before = pool.clone()
    indices = torch.tensor([-1, 1, 2, -7], dtype=torch.int32)
    pooled = arguments | {"initial_state": pool, "ssm_state_indices": indices}
    got_out, _ = chunk_kda(**pooled, output_final_state=True)
    assert torch.equal(got_out, out)
    expected = before.clone()
    expected[[1, 2]] = state[[1, 2]]
    assert torch.equal(pool.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_indices_may_be_a_column_of_a_table(dtype: torch.dtype) -> None:
    """As the first column of the slots per step, in which prefill leaves its state."""
    arguments = SMALL.arguments()
    out, state = forward(arguments)
    pool = pool_of(arguments["initial_state"])
    table = torch.stack([SLOTS, torch.full_like(SLOTS, 4)], 1).to(dtype)
    pooled = arguments | {"initial_state": pool, "ssm_state_indices": table[:, 0]}
    got_out, _ = chunk_kda(**pooled, output_final_state=True)
    assert torch.equal(got_out, out)
    assert torch.equal(pool[[5, 2, 0]], state[[0, 2, 3]])


def test_indices_past_32_bits_are_past_the_pool() -> None:
    arguments = SMALL.arguments()
    out, _ = forward(arguments | {"initial_state": None})
    pool = pool_of(arguments["initial_state"])
    before = pool.clone()
    far = torch.tensor([5, 1 - 2**33, 2 + 2**32, -(2**63)]) + torch.tensor([2**32, 0, 0, 0])
    pooled = arguments | {"initial_state": pool, "ssm_state_indices": far}
    assert torch.equal(chunk_kda(**pooled, output_final_state=True)[0], out)
    assert torch.equal(pool.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("has_pool", [False, True])
def test_sequences_that_have_no_state_yet(has_pool: bool) -> None:
    arguments = SMALL.arguments()
    has_state = torch.tensor([True, False, False, True])
    cleared = arguments["initial_state"].clone()
    cleared[~has_state] = 0
    out, state = forward(arguments | {"initial_state": cleared})
    # what a new slot holds may be anything
    arguments["initial_state"][2] = torch.nan
    call = arguments | {"has_initial_state": has_state, "output_final_state": True}
    if has_pool:
        pool = pool_of(arguments["initial_state"])
        call |= {"initial_state": pool, "ssm_state_indices": SLOTS.int()}
    before = arguments["initial_state"].clone()
    got_out, got_state = chunk_kda(**call)
    assert torch.equal(got_out, out)
    assert got_state is not None
    # only a pool is written to
    assert torch.equal(arguments["initial_state"].nan_to_num(7.0), before.nan_to_num(7.0))
    got = got_state[SLOTS] if has_pool else got_state
    running = [0, 2, 3]
    assert torch.equal(got[running], state[running])


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([5, 1, 2, 7], r"`ssm_state_indices\[3\]` must be below 7, .*got 7"),
        ([5, 1, 5, 0], r"`ssm_state_indices` must name every slot once, got 5"),
    ],
)
def test_slots_are_checked_on_demand(
    indices: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")
    arguments = SMALL.arguments()
    pooled = arguments | {
        "initial_state": pool_of(arguments["initial_state"]),
        "ssm_state_indices": torch.tensor(indices),
        "output_final_state": True,
    }
    with pytest.raises(ValueError, match=message):
        chunk_kda(**pooled)


def test_prefill_in_two_calls_through_a_pool() -> None:
    whole = SMALL.but(lengths=(128, 192), has_initial_state=False)
    arguments = whole.arguments()
    out, state = forward(arguments)
    pool = torch.full((4, 2, 64, 32), torch.nan)
    indices = torch.tensor([3, 1], dtype=torch.int32)
    parts = []
    for number, rows in enumerate(
        ((slice(0, 64), slice(128, 256)), (slice(64, 128), slice(256, 320)))
    ):
        part = dict(arguments)
        for name in ("q", "k", "v", "g", "beta"):
            part[name] = torch.cat([arguments[name][r] for r in rows])
        lengths = [r.stop - r.start for r in rows]
        part["cu_seqlens"] = [0, lengths[0], sum(lengths)]
        part |= {"initial_state": pool, "ssm_state_indices": indices, "output_final_state": True}
        part["has_initial_state"] = torch.tensor([number > 0] * 2)
        got, _ = chunk_kda(**part)
        parts.append(got.split(lengths))
    together = torch.cat([parts[0][0], parts[1][0], parts[0][1], parts[1][1]])
    assert torch.equal(together, out)
    assert torch.equal(pool[[3, 1]], state)
    assert torch.isnan(pool[[0, 2]]).all()


def test_slots_past_2_31_elements() -> None:
    arguments = SMALL.but(lengths=(3, 70)).arguments()
    out, state = forward(arguments)
    shape = arguments["initial_state"].shape[1:]
    # untouched memory costs nothing
    stride = 2**29 + 64
    room = torch.empty(6 * stride + 4096, dtype=torch.bfloat16)
    pool = room.as_strided((7, *shape), (stride, *arguments["initial_state"].stride()[1:]))
    rounded = arguments["initial_state"].bfloat16()
    out, state = forward(arguments | {"initial_state": rounded.float()})
    pool[[6, 4]] = rounded
    indices = torch.tensor([6, 4], dtype=torch.int32)
    pooled = arguments | {"initial_state": pool, "ssm_state_indices": indices}
    got_out, _ = chunk_kda(**pooled, output_final_state=True)
    assert torch.equal(got_out, out)
    assert torch.equal(pool[[6, 4]], state.bfloat16())
