"""Inputs that break linear attention: strong decay, keys that hardly differ, long sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import chunk_kda_fwd
from tests.kda.budget import assert_accurate, oracle
from tests.kda.problems import GATES, OUTPUTS, KdaProblem, in_layout, tokens_of

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

SMALL = KdaProblem(lengths=(150,), head_dims=(64, 64), heads=(1, 2))


def everything(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    return {name: getattr(results, name) for name in OUTPUTS}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("gate", GATES)
def test_gates_200_times_as_strong(gate: str, dtype: torch.dtype) -> None:
    arguments = SMALL.but(gate=gate, strength=200.0, dtype=dtype).arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert torch.isfinite(getattr(results, name)).all(), name
    assert_accurate(results, arguments)


@pytest.mark.parametrize("gate", ["given", "softplus"])
def test_a_gate_that_forgets_everything_in_the_middle_of_a_chunk(gate: str) -> None:
    arguments = SMALL.but(gate=gate).arguments()
    # after the activation far below any exponent of float32, in one column of two
    arguments["g"][:, 37, :, ::2] = -1e4 if gate == "given" else 1e4
    assert_accurate(chunk_kda_fwd(**arguments, outputs=OUTPUTS), arguments)


def test_a_bounded_gate_that_is_not_bounded_stays_finite() -> None:
    """A broken promise costs digits between near tokens, never a NaN or infinity."""
    arguments = SMALL.but(gate="given", strength=200.0).arguments()
    results = chunk_kda_fwd(**arguments, safe_gate=True, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert torch.isfinite(getattr(results, name)).all(), name


@pytest.mark.parametrize("l2norm", [False, True])
@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_rows_of_zeros(gate: str, l2norm: bool) -> None:
    arguments = SMALL.but(gate=gate, l2norm=l2norm).arguments()
    arguments["q"][:, 3:40] = 0
    arguments["k"][:, 20:70] = 0
    arguments["v"][:, 60:100] = 0
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert_accurate(results, arguments, has_absolute_limits=False)
    assert results.kg is not None
    assert not results.kg[:, :, 20:70].count_nonzero()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_norms_of_rows_far_from_one(dtype: torch.dtype) -> None:
    arguments = SMALL.but(l2norm=True, dtype=dtype).arguments()
    for name, size in (("q", 300.0), ("k", 1e-2)):
        arguments[name] *= size
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert_accurate(results, arguments, has_absolute_limits=False)


def test_raw_betas_of_any_size() -> None:
    arguments = SMALL.but(raw_beta=True, allow_neg_eigval=True).arguments()
    values = torch.tensor([0.0, -200.0, 200.0, -1e30, 1e30, 20.0, -20.0, 88.0, -104.0])
    arguments["beta"][:, : len(values)] = values[:, None]
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert_accurate(results, arguments, has_absolute_limits=False)


def test_no_decay_at_all() -> None:
    arguments = SMALL.but(gate="given").arguments()
    arguments["g"].zero_()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert_accurate(results, arguments, has_absolute_limits=False)
    assert results.gk is not None
    assert torch.equal(results.gk, torch.zeros_like(results.gk))


@pytest.mark.parametrize("chunk_size", [64, 128])
@pytest.mark.parametrize("beta", [0.95, 1.9])
@pytest.mark.parametrize("gate", ["given", "given_bounded"])
def test_the_inverse_with_keys_that_hardly_differ(gate: str, beta: float, chunk_size: int) -> None:
    """Akk in 16 bit hides the error of the inverse, w and u show what is left of it."""
    problem = SMALL.but(gate=gate, lengths=(chunk_size,), chunk_size=chunk_size, heads=(1, 1))
    arguments = problem.but(dtype=torch.float16, has_initial_state=False).arguments()
    generator = torch.Generator().manual_seed(1)
    shared = torch.randn(1, 1, 1, 64, generator=generator)
    keys = shared + 1e-3 * torch.randn(1, chunk_size, 1, 64, generator=generator)
    arguments["k"] = torch.nn.functional.normalize(keys, dim=-1).half()
    arguments["g"] = arguments["g"] * 1e-3
    arguments["beta"] = torch.full_like(arguments["beta"], beta)
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert torch.isfinite(getattr(results, name)).all(), name
    assert_accurate(results, arguments, has_absolute_limits=False)


def test_more_than_1024_chunks() -> None:
    problem = SMALL.but(head_dims=(16, 16), chunk_size=16, heads=(1, 1), gate="bounded")
    arguments = problem.but(lengths=(16 * 1030 + 3,)).arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert_accurate(results, arguments, has_absolute_limits=False)


def test_more_than_1024_sequences() -> None:
    lengths = tuple(n % 4 for n in range(1500))
    problem = SMALL.but(head_dims=(16, 16), chunk_size=16, heads=(1, 1), gate="bounded")
    arguments = problem.but(lengths=lengths, packed=True, layout="TND").arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert_accurate(results, arguments, has_absolute_limits=False)


@pytest.mark.slow
def test_more_than_65536_tokens() -> None:
    problem = SMALL.but(head_dims=(16, 16), heads=(1, 1), gate="bounded")
    arguments = problem.but(lengths=(65536, 7, 65600), packed=True, layout="TND").arguments()
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    assert_accurate(results, arguments, has_absolute_limits=False)


@pytest.mark.parametrize("gate", GATES)
def test_a_state_handed_over_continues_the_sequence(gate: str) -> None:
    arguments = SMALL.but(gate=gate, lengths=(200, 200)).arguments()
    whole = everything(arguments)
    first = everything(tokens_of(arguments, slice(0, 128)))
    rest = tokens_of(arguments, slice(128, None)) | {"initial_state": first["final_state"]}
    second = everything(rest)
    # A cut between chunks changes nothing: the same chunks in the same order.
    for name in OUTPUTS:
        if name == "final_state":
            together = second[name]
        else:
            axis = 1 if name in ("attn_out", "h") else 2
            together = torch.cat((first[name], second[name]), axis)
        assert torch.equal(together, whole[name]), name


def test_a_state_handed_over_within_a_chunk() -> None:
    arguments = SMALL.but(lengths=(100, 100)).arguments()
    first = everything(tokens_of(arguments, slice(0, 29)))
    rest = tokens_of(arguments, slice(29, None)) | {"initial_state": first["final_state"]}
    second = everything(rest)
    exact = oracle(arguments)
    assert exact.attn_out is not None
    assert exact.final_state is not None
    out = torch.cat((first["attn_out"], second["attn_out"]), 1)
    for got, expected in ((out, exact.attn_out), (second["final_state"], exact.final_state)):
        assert (got - expected).norm() < 5e-3 * expected.norm()


def test_repeats_are_bitwise_equal() -> None:
    arguments = SMALL.but(lengths=(300, 300), heads=(2, 4)).arguments()
    first = everything(arguments)
    for _ in range(3):
        again = everything(arguments)
        for name in OUTPUTS:
            assert torch.equal(first[name], again[name]), name


def test_the_number_of_threads_changes_no_bit() -> None:
    arguments = SMALL.but(lengths=(150, 0, 64, 9), packed=True, layout="NTD").arguments()
    torch.set_num_threads(1)
    one = everything(arguments)
    for threads in (2, 3, 7):
        torch.set_num_threads(threads)
        several = everything(arguments)
        for name in OUTPUTS:
            assert torch.equal(one[name], several[name]), (threads, name)


FAR = 2**31 + 2**12


def sparse(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a view over untouched memory, which costs only the pages that are written."""
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return torch.empty(extent, dtype=dtype).as_strided(shape, strides)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("axis", [0, 2], ids=["batch", "head"])
def test_offsets_past_2_31_elements(axis: int, count: int) -> None:
    """One stride is above 2^31, or three strides are that together are not alone."""
    heads = count if axis == 2 else 1
    problem = SMALL.but(lengths=(70,) * (count if axis == 0 else 1), heads=(heads, heads))
    near = problem.arguments()
    far = dict(near)
    for name in ("q", "k", "v", "g", "beta"):
        x = near[name]
        width = x.shape[-1] if x.dim() == 4 else 1
        # tokens side by side
        strides = [70 * width, width, width, 1][: x.dim()]
        strides[axis] = FAR if count == 2 else FAR // 2
        view = sparse(tuple(x.shape), tuple(strides), x.dtype)
        view.copy_(x)
        far[name] = view
    expected, got = everything(near), everything(far)
    for name in OUTPUTS:
        assert torch.equal(got[name], expected[name]), name


def test_tokens_past_2_31_elements_of_a_packed_batch() -> None:
    """The last sequences lie behind 2^31 elements of each input."""
    problem = SMALL.but(lengths=(530, 3, 70), packed=True, layout="TND", heads=(1, 1))
    near = problem.arguments()
    far = dict(near)
    for name in ("q", "k", "v", "g", "beta"):
        x = near[name]
        # 512 tokens, a tile at most, stay within 2^31 elements; 603 do not
        view = sparse(tuple(x.shape), (2**22, *x.stride()[1:]), x.dtype)
        view.copy_(x)
        far[name] = view
    expected, got = everything(near), everything(far)
    for name in OUTPUTS:
        assert torch.equal(got[name], expected[name]), name


def test_identical_tokens_with_beta_one_store_the_last_value() -> None:
    """Without decay, what was written last under a key is what it reads."""
    arguments = SMALL.but(gate="given", lengths=(40,), has_initial_state=False).arguments()
    key = torch.zeros(64)
    key[3] = 1
    for name in ("q", "k"):
        arguments[name] = in_layout(key.expand(1, 40, 1, 64), "BSND").bfloat16()
    arguments["g"].zero_()
    arguments["beta"] = torch.ones_like(arguments["beta"])
    arguments["scale"] = 1.0
    results = everything(arguments)
    # each result sums up differences of values that were rounded once
    v = arguments["v"].double()
    assert (results["attn_out"] - v).norm() < 2e-2 * v.norm()
