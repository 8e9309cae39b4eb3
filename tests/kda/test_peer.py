"""The chunked forward against flash-linear-attention's plain torch code."""

from __future__ import annotations

import math

import pytest
import torch

from fa_triton import chunk_kda_fwd
from tests.kda.problems import OUTPUTS, KdaProblem, one_thread
from tests.reference.fla_naive import fla_arguments, fla_naive, with_locals

# What a few roundings to 16 bit cost.
LIMIT = {torch.bfloat16: 6e-3, torch.float16: 1e-3}
BASE = KdaProblem(lengths=(128, 128), gate="given_bounded", head_dims=(64, 64), heads=(1, 2))


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize("chunk_size", [64, 128])
def test_results_and_intermediates_agree(chunk_size: int, dtype: torch.dtype) -> None:
    arguments = BASE.but(chunk_size=chunk_size, dtype=dtype).arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    peer = fla_naive()
    # its result has the dtype of v, which would be rounded once more
    given = {
        name: value.float() if isinstance(value, torch.Tensor) else value
        for name, value in fla_arguments(arguments).items()
    }
    with one_thread():
        recurrent_out, recurrent_state = peer.naive_recurrent_kda(**given)
        (out, state), inner = with_locals(peer.naive_chunk_kda, **given, chunk_size=chunk_size)

    def assert_close(got: torch.Tensor | None, expected: torch.Tensor) -> None:
        assert got is not None
        assert got.shape == expected.shape
        assert (got.float() - expected).norm() <= LIMIT[dtype] * expected.norm()

    for expected_out, expected_state in ((recurrent_out, recurrent_state), (out, state)):
        assert_close(results.attn_out, expected_out)
        assert_close(results.final_state, expected_state)
    beta = arguments["beta"].transpose(1, 2).unflatten(2, (-1, chunk_size))
    assert_close(results.gk, inner["g"].flatten(2, 3) / math.log(2))
    assert_close(results.Akk, (inner["A"] / beta[..., None, :]).flatten(2, 3))
    assert_close(results.w, inner["w"].flatten(2, 3))
    assert_close(results.u, inner["u"].flatten(2, 3))
    # the last chunk's, which the loop left behind
    last = slice(128 - chunk_size, None)
    assert results.Aqk is not None
    assert results.v_new is not None
    assert results.qg is not None
    assert_close(results.Aqk[:, :, last], inner["Aqk"])
    assert_close(results.v_new[:, :, last], inner["v_i"])
    unscaled = inner["q_i"] * inner["g_i"].exp() / arguments["scale"]
    assert_close(results.qg[:, :, last], unscaled)
