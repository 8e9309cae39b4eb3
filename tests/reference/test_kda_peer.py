"""The oracle of Kimi Delta Attention against flash-linear-attention's plain torch code.

That code computes in float32: sums of gates of 100 carry 1e-5 into a power of two.
"""

from __future__ import annotations

import math

import pytest
import torch

from fa_triton.kda_reference import chunk_kda_reference, kda_recurrent_reference
from tests.kda.problems import OUTPUTS, KdaProblem, recurrent_arguments
from tests.reference.fla_naive import fla_arguments, fla_naive, with_locals

FLOAT32_ERROR = 1e-5
LN2 = math.log(2.0)

BASE = KdaProblem(
    lengths=(128, 128), gate="given_bounded", dtype=torch.float32, head_dims=(32, 48), heads=(2, 4)
)
PROBLEMS = [
    BASE,
    BASE.but(heads=(3, 3), has_initial_state=False),
    BASE.but(chunk_size=32, head_dims=(64, 16)),
    BASE.but(chunk_size=128, beta_limit=2.0),
    BASE.but(lengths=(64,), heads=(1, 6), gate="given", strength=0.1),
]


def assert_close(got: torch.Tensor, expected: torch.Tensor | None) -> None:
    assert expected is not None
    assert got.shape == expected.shape
    error = ((got.double() - expected).norm() / expected.norm()).item()
    assert error < FLOAT32_ERROR


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_recurrence_is_the_same(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    out, state = fla_naive().naive_recurrent_kda(**fla_arguments(arguments))
    expected_out, expected_state = kda_recurrent_reference(**recurrent_arguments(arguments))
    assert_close(out, expected_out)
    assert_close(state, expected_state)


def test_the_recurrence_takes_any_length() -> None:
    arguments = BASE.but(lengths=(45,)).arguments()
    out, state = fla_naive().naive_recurrent_kda(**fla_arguments(arguments))
    expected = chunk_kda_reference(**arguments, output_final_state=True, out_dtype=torch.float64)
    assert_close(out, expected.attn_out)
    assert_close(state, expected.final_state)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_chunked_form_and_its_intermediates_are_the_same(problem: KdaProblem) -> None:
    arguments = problem.arguments()
    size = problem.chunk_size
    (out, state), inner = with_locals(
        fla_naive().naive_chunk_kda, **fla_arguments(arguments), chunk_size=size
    )
    expected = chunk_kda_reference(**arguments, outputs=OUTPUTS, out_dtype=torch.float64)
    assert_close(out, expected.attn_out)
    assert_close(state, expected.final_state)

    def in_chunks(x: torch.Tensor | None) -> torch.Tensor:
        """``[B, HV, T, ...]`` as ``[B, HV, chunks, C, ...]``."""
        assert x is not None
        return x.unflatten(2, (-1, size))

    beta = arguments["beta"].double().transpose(1, 2).unflatten(2, (-1, size))
    # There the gate is a natural logarithm, and A holds beta in its columns.
    assert_close(inner["g"], in_chunks(expected.gk) * LN2)
    assert_close(inner["A"], in_chunks(expected.Akk) * beta[..., None, :])
    assert_close(inner["w"], in_chunks(expected.w))
    assert_close(inner["u"], in_chunks(expected.u))
    # What the loop over chunks left behind belongs to the last chunk; q there holds the scale.
    assert_close(inner["Aqk"], in_chunks(expected.Aqk)[:, :, -1])
    assert_close(inner["v_i"], in_chunks(expected.v_new)[:, :, -1])
    assert_close(
        inner["q_i"] * inner["g_i"].exp(), in_chunks(expected.qg)[:, :, -1] * problem.scale
    )
    k_decayed = (inner["g_i"][:, :, -1:] - inner["g_i"]).exp() * inner["k_i"]
    assert_close(k_decayed, in_chunks(expected.kg)[:, :, -1])
