"""Two calls whose results must agree although nobody knows them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import chunk_kda_fwd
from tests.kda.problems import OUTPUTS, KdaProblem, from_layout, in_layout, tokens_of

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

SMALL = KdaProblem(head_dims=(64, 32), heads=(1, 2), lengths=(150, 150, 150))
INPUTS = ("q", "k", "v", "g", "beta")


def everything(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    return {name: getattr(results, name) for name in OUTPUTS}


def test_the_order_of_a_batch_does_not_matter() -> None:
    arguments = SMALL.arguments()
    order = torch.tensor([2, 0, 1])
    moved = arguments | {
        name: arguments[name][order].contiguous() for name in (*INPUTS, "initial_state")
    }
    got, expected = everything(moved), everything(arguments)
    for name in OUTPUTS:
        assert torch.equal(got[name], expected[name][order]), name


def test_the_order_of_value_heads_does_not_matter() -> None:
    arguments = SMALL.but(heads=(3, 3)).arguments()
    order = torch.tensor([1, 2, 0])
    moved = dict(arguments)
    for name in INPUTS:
        moved[name] = arguments[name][:, :, order].contiguous()
    moved["initial_state"] = arguments["initial_state"][:, order].contiguous()
    moved["A_log"] = arguments["A_log"][order].contiguous()
    moved["dt_bias"] = arguments["dt_bias"].view(3, -1)[order].contiguous().view(-1)
    got, expected = everything(moved), everything(arguments)
    for name in OUTPUTS:
        axis = 2 if name in ("attn_out", "h") else 1
        assert torch.equal(got[name], expected[name].index_select(axis, order)), name


def test_a_prefix_does_not_see_what_follows() -> None:
    arguments = SMALL.arguments()
    expected = everything(arguments)
    for end in (1, 64, 100):
        got = everything(tokens_of(arguments, slice(0, end)))
        full_chunks = end // 64 * 64
        for name in OUTPUTS:
            if name == "final_state":
                continue
            if name == "h":
                part = expected[name][:, : got[name].shape[1]]
                assert torch.equal(got[name], part), name
                continue
            # kg of a cut chunk looks at another last row
            rows = full_chunks if name == "kg" else end
            axis = 1 if name == "attn_out" else 2
            assert torch.equal(
                got[name].narrow(axis, 0, rows), expected[name].narrow(axis, 0, rows)
            ), (end, name)


def test_rubbish_that_follows_does_not_matter() -> None:
    arguments = SMALL.arguments()
    expected = everything(arguments)
    spoilt = dict(arguments)
    for name in INPUTS:
        spoilt[name] = arguments[name].clone()
        spoilt[name][:, 100:] = torch.nan
    got = everything(spoilt)
    assert torch.equal(got["attn_out"][:, :64], expected["attn_out"][:, :64])
    for name in ("gk", "w", "u", "v_new", "Akk", "Aqk", "qg", "kg"):
        assert torch.equal(got[name][:, :, :64], expected[name][:, :, :64]), name


def test_a_packed_batch_equals_its_sequences_one_by_one() -> None:
    problem = SMALL.but(lengths=(70, 0, 1, 64, 130), packed=True, layout="BSND")
    arguments = problem.arguments()
    bounds = problem.cu_seqlens
    assert bounds is not None
    packed = everything(arguments)
    first_chunk = 0
    for n, length in enumerate(problem.lengths):
        tokens = slice(bounds[n], bounds[n + 1])
        if not length:
            continue
        alone = tokens_of(arguments, tokens)
        del alone["cu_seqlens"]
        alone["initial_state"] = arguments["initial_state"][n : n + 1]
        results = everything(alone)
        chunks = slice(first_chunk, first_chunk + -(-length // 64))
        first_chunk = chunks.stop
        for name in OUTPUTS:
            if name == "final_state":
                part = packed[name][n : n + 1]
            elif name == "h":
                part = packed[name][:, chunks]
            else:
                part = packed[name][:, tokens] if name == "attn_out" else packed[name][:, :, tokens]
            assert torch.equal(results[name], part), (n, name)


def test_a_dense_batch_equals_a_packed_one() -> None:
    dense = SMALL.arguments()
    packed = dict(dense)
    for name in INPUTS:
        flat = from_layout(dense[name], "BSND").flatten(0, 1)[None]
        packed[name] = in_layout(flat, "TND")
    packed |= {"layout": "TND", "cu_seqlens": [0, 150, 300, 450]}
    got, expected = everything(packed), everything(dense)
    assert torch.equal(got["attn_out"], expected["attn_out"].flatten(0, 1))
    assert torch.equal(got["h"], expected["h"].flatten(0, 1))
    assert torch.equal(got["final_state"], expected["final_state"])
    for name in set(OUTPUTS) - {"attn_out", "h", "final_state"}:
        assert torch.equal(got[name], expected[name].transpose(0, 1).flatten(1, 2)), name


def test_neighbours_full_of_nan_do_not_reach_a_sequence() -> None:
    problem = SMALL.but(lengths=(13, 70, 5), packed=True, layout="TND")
    arguments = problem.arguments()
    expected = everything(arguments)
    spoilt = dict(arguments)
    for name in INPUTS:
        spoilt[name] = arguments[name].clone()
        spoilt[name][:13] = torch.nan
        spoilt[name][83:] = torch.nan
    got = everything(spoilt)
    assert torch.equal(got["attn_out"][13:83], expected["attn_out"][13:83])
    assert torch.equal(got["final_state"][1], expected["final_state"][1])
    assert torch.equal(got["h"][1:3], expected["h"][1:3])
    for name in set(OUTPUTS) - {"attn_out", "h", "final_state"}:
        assert torch.equal(got[name][:, 13:83], expected[name][:, 13:83]), name


@pytest.mark.parametrize("gate", ["given", "softplus", "bounded"])
def test_v_first_is_the_same_state_turned(gate: str) -> None:
    arguments = SMALL.but(gate=gate).arguments()
    turned = arguments | {
        "state_v_first": True,
        "initial_state": arguments["initial_state"].mT.contiguous(),
    }
    got, expected = everything(turned), everything(arguments)
    for name in ("h", "final_state"):
        got[name] = got[name].mT
    for name in OUTPUTS:
        torch.testing.assert_close(got[name], expected[name], rtol=2e-2, atol=2e-3)


def test_a_power_of_two_passes_through() -> None:
    """The rule is linear in v and the state, and a power of two moves no rounding."""
    arguments = SMALL.arguments()
    scaled = arguments | {
        "v": arguments["v"] * 4,
        "initial_state": arguments["initial_state"] * 4,
    }
    got, expected = everything(scaled), everything(arguments)
    for name in ("attn_out", "final_state", "u", "v_new", "h"):
        assert torch.equal(got[name], expected[name] * 4), name
    for name in ("gk", "Aqk", "Akk", "w", "qg", "kg"):
        assert torch.equal(got[name], expected[name]), name
