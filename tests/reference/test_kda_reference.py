"""The oracle of Kimi Delta Attention: chunked, token by token, and by the letter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from fa_triton.delta_rule.outputs import ChunkKdaOutputs
from fa_triton.kda_reference import (
    chunk_kda_reference,
    kda_gate_cumsum_reference,
    kda_gate_reference,
    kda_recurrent_reference,
)
from tests.kda.problems import (
    GATES,
    LAYOUTS,
    OUTPUTS,
    KdaProblem,
    from_layout,
    recurrent_arguments,
    tokens_of,
)
from tests.reference import kda_by_the_letter as letter

EXACT = 1e-10
f64 = torch.float64


def exact(problem: KdaProblem, **options: Any) -> tuple[dict[str, Any], ChunkKdaOutputs]:
    """Arguments of a problem and all of its results in float64."""
    arguments = problem.arguments()
    results = chunk_kda_reference(
        **{**arguments, **options}, outputs=(*OUTPUTS, "initial_state"), out_dtype=f64
    )
    return arguments, results


def assert_close(got: torch.Tensor | None, expected: torch.Tensor, limit: float = EXACT) -> None:
    assert got is not None
    assert got.shape == expected.shape
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got, expected, rtol=limit, atol=limit)


BASE = KdaProblem(dtype=f64, head_dims=(32, 48), heads=(1, 2), g_dtype=f64, beta_dtype=f64)
PROBLEMS = [
    *(BASE.but(gate=gate) for gate in GATES),
    *(BASE.but(gate=gate, strength=200.0) for gate in GATES),
    *(BASE.but(layout=layout, lengths=(130,)) for layout in LAYOUTS),
    *(
        BASE.but(layout=layout, lengths=(0, 1, 64, 0, 65, 17), packed=True, state_v_first=True)
        for layout in LAYOUTS
    ),
    *(BASE.but(lengths=(tail, tail), heads=(2, 6)) for tail in (1, 2, 15, 16, 17, 63, 64, 65)),
    *(BASE.but(chunk_size=size) for size in (16, 32, 128)),
    BASE.but(l2norm=True),
    BASE.but(raw_beta=True),
    BASE.but(raw_beta=True, allow_neg_eigval=True, l2norm=True),
    BASE.but(has_initial_state=False),
    BASE.but(has_dt_bias=False),
    BASE.but(gate="bounded", lower_bound=-0.5),
    BASE.but(dtype=torch.bfloat16, g_dtype=torch.bfloat16, beta_dtype=torch.bfloat16),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_chunks_equal_the_recurrence(problem: KdaProblem) -> None:
    arguments, results = exact(problem)
    out, state = kda_recurrent_reference(**recurrent_arguments(arguments))
    assert_close(results.attn_out, out)
    assert_close(results.final_state, state)


@pytest.mark.parametrize("gate", ["given", "softplus", "bounded"])
@pytest.mark.parametrize("l2norm", [False, True])
def test_both_equal_the_definition_by_the_letter(gate: str, l2norm: bool) -> None:
    problem = BASE.but(
        gate=gate,
        lengths=(4, 0, 21, 1),
        packed=True,
        head_dims=(3, 2),
        heads=(2, 4),
        chunk_size=8,
        layout="TND",
        l2norm=l2norm,
        raw_beta=l2norm,
        allow_neg_eigval=l2norm,
    )
    arguments, results = exact(problem)
    out, states = kda_recurrent_reference(**recurrent_arguments(arguments))
    bounds = problem.cu_seqlens
    assert bounds is not None
    first_chunk = 0
    for n, (start, end) in enumerate(pairwise(bounds)):
        num_chunks = -(-(end - start) // problem.chunk_size)
        for head in range(4):
            one = _one_head(arguments, problem, n, start, end, head)
            l_out, l_state = letter.recurrent(one)
            assert_close(out[start:end, head], _matrix(l_out, 2))
            assert_close(states[n, head], _matrix(l_state, 2))
            chunked = letter.chunked(one, problem.chunk_size)
            for name in OUTPUTS:
                got = getattr(results, name)
                if name == "attn_out":
                    got = got[start:end, head]
                elif name == "final_state":
                    got = got[n, head]
                elif name == "h":
                    got = got[first_chunk : first_chunk + num_chunks, head]
                else:
                    got = got[head, start:end]
                assert_close(got, torch.tensor(getattr(chunked, name), dtype=f64).view(got.shape))
        first_chunk += num_chunks


def _one_head(
    arguments: dict[str, Any], problem: KdaProblem, n: int, start: int, end: int, head: int
) -> letter.Head:
    """Cut a head of a packed sequence out, gate, norm and sigmoid taken by the letter."""
    shared = head // (problem.heads[1] // problem.heads[0])
    q, k = (arguments[name][start:end, shared].tolist() for name in ("q", "k"))
    if problem.l2norm:
        q, k = [letter.normalised(x) for x in q], [letter.normalised(x) for x in k]
    a = arguments["g"][start:end, head].tolist()
    if problem.gate != "given":
        bias = arguments["dt_bias"].view(problem.heads[1], -1)[head].tolist()
        rate = arguments["A_log"][head].item()
        a = [
            [
                letter.softplus_gate(x + b, rate)
                if problem.gate == "softplus"
                else letter.bounded_gate(x + b, rate, -5.0)
                for x, b in zip(row, bias, strict=True)
            ]
            for row in a
        ]
    beta = arguments["beta"][start:end, head]
    if problem.raw_beta:
        beta = 2 / (1 + torch.exp(-beta))
    return letter.Head(
        q=q,
        k=k,
        v=arguments["v"][start:end, head].tolist(),
        a=a,
        beta=beta.tolist(),
        scale=arguments["scale"],
        state=arguments["initial_state"][n, head].tolist(),
    )


def _matrix(rows: letter.Matrix, width: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=f64).view(-1, width)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_results_have_the_shapes_and_dtypes_of_the_operator(layout: str) -> None:
    packed = layout in ("TND", "NTD")
    problem = KdaProblem(
        lengths=(70, 0, 70) if packed else (70, 70), packed=packed, layout=layout, heads=(1, 3)
    ).but(head_dims=(32, 16), state_v_first=True)
    arguments = problem.arguments()
    results = chunk_kda_reference(**arguments, output_final_state=True, disable_recompute=True)
    batch = () if packed else (2,)
    tokens, chunks = (140, 4) if packed else (70, 2)
    bf16, f32 = torch.bfloat16, torch.float32
    expected = {
        "attn_out": ((*batch, tokens, 3, 16), bf16),
        "final_state": ((3 if packed else 2, 3, 16, 32), f32),
        "gk": ((*batch, 3, tokens, 32), f32),
        "Aqk": ((*batch, 3, tokens, 64), bf16),
        "Akk": ((*batch, 3, tokens, 64), bf16),
        "w": ((*batch, 3, tokens, 32), bf16),
        "u": ((*batch, 3, tokens, 16), bf16),
        "qg": ((*batch, 3, tokens, 32), bf16),
        "kg": ((*batch, 3, tokens, 32), bf16),
        "v_new": ((*batch, 3, tokens, 16), bf16),
        "h": ((*batch, chunks, 3, 16, 32), bf16),
    }
    for name, (shape, dtype) in expected.items():
        result = getattr(results, name)
        assert (tuple(result.shape), result.dtype) == (shape, dtype), name
        assert result.is_contiguous(), name
    assert results.initial_state is arguments["initial_state"]


@pytest.mark.parametrize(
    ("gate", "flags", "absent"),
    [
        ("given", {}, {"final_state", "w", "u", "qg", "kg", "v_new", "h"}),
        ("softplus", {}, {"final_state", "gk", "w", "u", "qg", "kg", "v_new", "h"}),
        ("softplus", {"disable_recompute": True}, {"final_state"}),
        (
            "given",
            {"return_intermediate_states": True, "output_final_state": True},
            {"w", "u", "qg", "kg", "v_new"},
        ),
        ("softplus", {"outputs": ("attn_out", "kg")}, set(OUTPUTS) - {"attn_out", "kg"}),
    ],
)
def test_only_what_was_asked_for_is_returned(
    gate: str, flags: dict[str, Any], absent: set[str]
) -> None:
    arguments = KdaProblem(lengths=(20,), head_dims=(16, 16), gate=gate).arguments()
    results = chunk_kda_reference(**arguments, **flags)
    assert {name for name in OUTPUTS if getattr(results, name) is None} == absent


def test_a_given_state_is_left_alone() -> None:
    arguments = BASE.arguments()
    before = arguments["initial_state"].clone()
    chunk_kda_reference(**arguments)
    kda_recurrent_reference(**recurrent_arguments(arguments))
    assert torch.equal(arguments["initial_state"], before)


def test_no_tokens_leave_the_state() -> None:
    problem = BASE.but(lengths=(0, 0), layout="TND", packed=True)
    arguments, results = exact(problem)
    out, state = kda_recurrent_reference(**recurrent_arguments(arguments))
    assert out.shape == (0, 2, 48)
    assert results.h is not None
    assert results.h.shape == (0, 2, 32, 48)
    assert torch.equal(state, arguments["initial_state"].double())
    assert_close(results.final_state, state)


def test_strong_gates_evaluate_no_positive_exponent() -> None:
    arguments = BASE.but(gate="given", strength=200.0, lengths=(128,)).arguments()
    # A decay between two tokens that float64 cannot hold in the other direction.
    arguments["g"][:, ::3] = -800.0
    results = chunk_kda_reference(**arguments, outputs=OUTPUTS, out_dtype=f64)
    for name in OUTPUTS:
        assert torch.isfinite(getattr(results, name)).all(), name
    out, state = kda_recurrent_reference(**recurrent_arguments(arguments))
    assert_close(results.attn_out, out)
    assert_close(results.final_state, state)


def test_a_sequence_in_two_calls_is_a_sequence() -> None:
    arguments, whole = exact(BASE.but(lengths=(150, 150)))
    first = chunk_kda_reference(
        **tokens_of(arguments, slice(0, 64)), output_final_state=True, out_dtype=f64
    )
    rest = {**tokens_of(arguments, slice(64, None)), "initial_state": first.final_state}
    second = chunk_kda_reference(**rest, output_final_state=True, out_dtype=f64)
    assert first.attn_out is not None
    assert second.attn_out is not None
    assert whole.attn_out is not None
    assert_close(torch.cat((first.attn_out, second.attn_out), 1), whole.attn_out)
    assert whole.final_state is not None
    assert_close(second.final_state, whole.final_state)


def test_lengths_may_come_as_a_list_or_a_tensor() -> None:
    problem = BASE.but(lengths=(3, 70), layout="NTD", packed=True)
    arguments, from_tensor = exact(problem)
    _, from_list = exact(problem, cu_seqlens=problem.cu_seqlens)
    for name in OUTPUTS:
        assert torch.equal(getattr(from_tensor, name), getattr(from_list, name)), name
    out, _ = kda_recurrent_reference(
        **{**recurrent_arguments(arguments), "cu_seqlens": problem.cu_seqlens}
    )
    assert from_list.attn_out is not None
    assert_close(from_list.attn_out, out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_emulation_stores_what_the_kernels_store(dtype: torch.dtype) -> None:
    problem = KdaProblem(dtype=dtype)
    _, exact_results = exact(problem)
    arguments, emulated = exact(problem, emulate=dtype)
    ulp = torch.finfo(dtype).eps
    for name in ("Akk", "Aqk", "w", "u", "qg", "kg", "v_new", "h"):
        result = getattr(emulated, name)
        assert torch.equal(result.to(dtype).double(), result), name
    for name in OUTPUTS:
        got, expected = getattr(emulated, name), getattr(exact_results, name)
        error = (got - expected).norm() / expected.norm()
        assert 0 < error < 2 * ulp, name
    # Normalised rows are not rounded to 16 bit again.
    normalised = {**arguments, "use_qk_l2norm_in_kernel": True}
    inner = {**normalised, "use_qk_l2norm_in_kernel": False}
    for name in ("q", "k"):
        x = arguments[name].double()
        inner[name] = x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    a = chunk_kda_reference(**normalised, out_dtype=f64)
    b = chunk_kda_reference(**inner, out_dtype=f64)
    assert b.attn_out is not None
    assert_close(a.attn_out, b.attn_out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gate", GATES)
def test_sums_of_gates_start_anew_in_every_chunk(layout: str, gate: str) -> None:
    problem = BASE.but(lengths=(5, 0, 40), packed=True, layout=layout, gate=gate, chunk_size=16)
    arguments, results = exact(problem)
    options = {
        name: arguments[name]
        for name in ("A_log", "dt_bias", "use_gate_in_kernel", "safe_gate", "cu_seqlens")
        if name in arguments
    }
    gk = kda_gate_cumsum_reference(arguments["g"], 16, layout=layout, **options)
    assert results.gk is not None
    assert torch.equal(gk, results.gk)
    del options["cu_seqlens"]
    a = kda_gate_reference(from_layout(arguments["g"], layout), **options)[0] / letter.LN2
    steps = gk.reshape(2, 45, -1).transpose(0, 1).diff(dim=0, prepend=torch.zeros(1, 2, 32))
    starts = [0, 5, 21, 37]
    inside = [t for t in range(45) if t not in starts]
    torch.testing.assert_close(steps[inside], a[inside])
    torch.testing.assert_close(gk.reshape(2, 45, -1)[:, starts].transpose(0, 1), a[starts])


def test_a_raw_gate_needs_its_rate() -> None:
    with pytest.raises(ValueError, match="`A_log` must be given"):
        kda_gate_reference(torch.zeros(1, 2, 16), use_gate_in_kernel=True)
