"""The twelve results: which are there, their shapes, dtypes, order, zeros, and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import chunk_kda_fwd
from tests.kda.problems import LAYOUTS, OUTPUTS, KdaProblem

SMALL = KdaProblem(head_dims=(64, 32), heads=(1, 3), lengths=(70, 70))


def for_layout(layout: str, *, packed: bool) -> KdaProblem:
    problem = SMALL.but(layout=layout)
    return problem.but(lengths=(70, 0, 1, 64), packed=True) if packed else problem


@pytest.mark.parametrize("state_v_first", [False, True])
@pytest.mark.parametrize(
    ("layout", "packed"),
    [("BSND", False), ("BNSD", False), *((layout, True) for layout in LAYOUTS)],
)
def test_shapes_dtypes_and_order(layout: str, packed: bool, state_v_first: bool) -> None:
    arguments = for_layout(layout, packed=packed).but(state_v_first=state_v_first).arguments()
    results = chunk_kda_fwd(**arguments, output_final_state=True, disable_recompute=True)
    assert results._fields == (*OUTPUTS, "initial_state")
    if layout in ("TND", "NTD"):
        batch, tokens, chunks, sequences = (), 135, 4, 4
    elif packed:
        batch, tokens, chunks, sequences = (1,), 135, 4, 4
    else:
        batch, tokens, chunks, sequences = (2,), 70, 2, 2
    state = (32, 64) if state_v_first else (64, 32)
    bf16, f32 = torch.bfloat16, torch.float32
    expected = {
        "attn_out": ((*batch, tokens, 3, 32), bf16),
        "final_state": ((sequences, 3, *state), f32),
        "gk": ((*batch, 3, tokens, 64), f32),
        "Aqk": ((*batch, 3, tokens, 64), bf16),
        "Akk": ((*batch, 3, tokens, 64), bf16),
        "w": ((*batch, 3, tokens, 64), bf16),
        "u": ((*batch, 3, tokens, 32), bf16),
        "qg": ((*batch, 3, tokens, 64), bf16),
        "kg": ((*batch, 3, tokens, 64), bf16),
        "v_new": ((*batch, 3, tokens, 32), bf16),
        "h": ((*batch, chunks, 3, *state), bf16),
    }
    for name, (shape, dtype) in expected.items():
        result = getattr(results, name)
        assert (tuple(result.shape), result.dtype) == (shape, dtype), name
        assert result.is_contiguous(), name
    assert results.initial_state is arguments["initial_state"]


@pytest.mark.parametrize("layout", ["TND", "NTD"])
def test_one_sequence_of_rank_3(layout: str) -> None:
    arguments = SMALL.but(layout=layout, lengths=(70,)).arguments()
    results = chunk_kda_fwd(**arguments, output_final_state=True, disable_recompute=True)
    assert results.attn_out is not None
    assert results.h is not None
    assert results.final_state is not None
    assert results.attn_out.shape == (70, 3, 32)
    assert results.h.shape == (2, 3, 64, 32)
    assert results.final_state.shape == (1, 3, 64, 32)


GIVEN_ALWAYS = {"attn_out", "gk", "Aqk", "Akk"}
RAW_ALWAYS = {"attn_out", "Aqk", "Akk"}
INTERMEDIATES = {"w", "u", "qg", "kg", "v_new", "h"}


@pytest.mark.parametrize(
    ("gate", "flags", "there"),
    [
        ("given", {}, GIVEN_ALWAYS),
        ("given_bounded", {}, GIVEN_ALWAYS),
        ("softplus", {}, RAW_ALWAYS),
        ("bounded", {"output_final_state": True}, RAW_ALWAYS | {"final_state"}),
        ("softplus", {"return_intermediate_states": True}, RAW_ALWAYS | {"h"}),
        ("softplus", {"disable_recompute": True}, GIVEN_ALWAYS | INTERMEDIATES),
        ("given", {"disable_recompute": True}, GIVEN_ALWAYS | INTERMEDIATES),
        ("softplus", {"outputs": ()}, set()),
        ("softplus", {"outputs": ("gk",)}, {"gk"}),
        ("given", {"outputs": ["h", "attn_out"], "output_final_state": True}, {"h", "attn_out"}),
        ("softplus", {"outputs": ("final_state",)}, {"final_state"}),
        ("softplus", {"outputs": ("kg", "Aqk"), "disable_recompute": True}, {"kg", "Aqk"}),
    ],
)
def test_which_results_are_there(gate: str, flags: dict[str, Any], there: set[str]) -> None:
    arguments = SMALL.but(gate=gate, lengths=(20,), heads=(1, 1)).arguments()
    results = chunk_kda_fwd(**arguments, **flags)
    assert {name for name in OUTPUTS if getattr(results, name) is not None} == there
    assert results.initial_state is arguments["initial_state"]


def test_no_initial_state_is_returned_as_none() -> None:
    arguments = SMALL.but(has_initial_state=False).arguments()
    assert chunk_kda_fwd(**arguments).initial_state is None


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_result_asked_for_alone_is_the_same(name: str) -> None:
    arguments = SMALL.arguments()
    together = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    alone = chunk_kda_fwd(**arguments, outputs=(name,))
    assert torch.equal(getattr(alone, name), getattr(together, name))


@pytest.mark.parametrize("gate", ["softplus", "bounded"])
@pytest.mark.parametrize("chunk_size", [16, 64, 128])
@pytest.mark.usefixtures("nan_filled_memory")
def test_zeros_above_the_diagonal_and_behind_the_tail(gate: str, chunk_size: int) -> None:
    lengths = (1, 0, chunk_size, chunk_size + 3, 2 * chunk_size - 1, 5)
    problem = SMALL.but(layout="TND", packed=True, lengths=lengths, gate=gate, heads=(1, 2))
    arguments = problem.but(chunk_size=chunk_size).arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    place = torch.cat([torch.arange(length) % chunk_size for length in lengths])
    later = torch.arange(chunk_size)[None] > place[:, None]
    for name in ("Aqk", "Akk"):
        scores = getattr(results, name)
        assert not scores[:, later].count_nonzero(), name
        assert torch.isfinite(scores).all(), name
    assert results.Akk is not None
    diagonal = results.Akk.gather(2, place[None, :, None].expand(2, -1, -1))
    assert torch.equal(diagonal, torch.ones_like(diagonal))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("nan_filled_memory")
def test_every_element_is_written(layout: str) -> None:
    lengths = (3, 0, 64, 65, 1)
    arguments = SMALL.but(layout=layout, packed=True, lengths=lengths).arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert torch.isfinite(getattr(results, name)).all(), name


def test_inputs_stay_as_they_are() -> None:
    arguments = SMALL.arguments()
    before = {
        name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)
    }
    chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    for name, value in before.items():
        assert torch.equal(arguments[name], value), name


def test_an_empty_sequence_keeps_its_state() -> None:
    problem = SMALL.but(lengths=(0, 5, 0), packed=True, layout="TND")
    for has_state in (True, False):
        arguments = problem.but(has_initial_state=has_state).arguments()
        results = chunk_kda_fwd(**arguments, output_final_state=True)
        assert results.final_state is not None
        initial = arguments.get("initial_state", torch.zeros_like(results.final_state))
        assert torch.equal(results.final_state[[0, 2]], initial[[0, 2]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_tokens_at_all(layout: str) -> None:
    arguments = SMALL.but(lengths=(0, 0), packed=True, layout=layout).arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    batch = () if layout in ("TND", "NTD") else (1,)
    assert results.attn_out is not None
    assert results.h is not None
    assert results.final_state is not None
    assert results.attn_out.shape == (*batch, 0, 3, 32)
    assert results.h.shape == (*batch, 0, 3, 64, 32)
    assert torch.equal(results.final_state, arguments["initial_state"])


def test_dense_sequences_without_tokens() -> None:
    arguments = SMALL.but(lengths=(0, 0)).arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert results.attn_out is not None
    assert results.h is not None
    assert results.attn_out.shape == (2, 0, 3, 32)
    assert results.h.shape == (2, 0, 3, 64, 32)
    assert torch.equal(results.final_state, arguments["initial_state"])
