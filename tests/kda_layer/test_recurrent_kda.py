"""``recurrent_kda`` against the float64 oracle: states by slot, steps, layouts, gates."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton import recurrent_kda
from tests.kda_layer.recurrent_calls import Case, answer, make

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

POOL = Case(lengths=(1, 1, 1), slots=7, indices=(5, 0, 3))
# One row per sequence: skipped by its first index, empty, then steps 2, 3 and 1 of three slots.
SPECULATIVE = Case(
    lengths=(1, 0, 3, 2, 1),
    slots=16,
    indices=((-1, 4, 5), (1, 2, 3), (6, 7, 8), (9, 10, 11), (12, 13, 14)),
    accepted=(1, 2, 2, 3, 1),
)


def assert_rounded_once(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Every element is the float64 result, rounded once, up to the arithmetic in fp32."""
    if not wanted.numel():
        return
    rounding = torch.finfo(got.dtype).eps / 2 * wanted.abs()
    arithmetic = 1e-5 * wanted.abs().max()
    assert bool(((got.double() - wanted).abs() <= 1.01 * rounding + arithmetic).all())


def check(case: Case) -> None:
    """Result, states and untouched slots of one call."""
    call = make(case)
    wanted = answer(case, call.arguments)
    before = call.state.clone()
    out, final = call(recurrent_kda)
    assert_rounded_once(out.reshape(wanted.out.shape), wanted.out)
    in_place = call.arguments.get("inplace_final_state", True)
    states = call.state if in_place else final
    if in_place:
        untouched = [slot for slot in range(len(before)) if slot not in wanted.states]
        assert torch.equal(call.state[untouched], before[untouched])
        assert final is (call.state if call.arguments.get("output_final_state") else None)
    else:
        assert torch.equal(call.state, before)
    if states is not None:
        for slot, state in wanted.states.items():
            assert_rounded_once(states[slot], state)


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "TND", "NTD"])
@pytest.mark.parametrize("v_first", [True, False])
def test_every_layout_packed(layout: str, v_first: bool) -> None:
    check(
        POOL.but(
            layout=layout,
            lengths=(2, 0, 3),
            padding=2,
            options={"state_v_first": v_first, "output_final_state": True},
        )
    )


@pytest.mark.parametrize("layout", ["BSND", "BNSD"])
def test_batch_entries_are_sequences(layout: str) -> None:
    check(Case(lengths=(3, 3), packed=False, layout=layout))
    check(Case(lengths=(2, 2), packed=False, layout=layout, slots=4, indices=(3, 1)))


@pytest.mark.parametrize("layout", ["TND", "NTD"])
def test_packed_without_starts_is_one_sequence(layout: str) -> None:
    check(Case(lengths=(3,), packed=False, layout=layout))


GATES: list[dict[str, Any]] = [
    {"use_gate_in_kernel": False},
    {},
    {"safe_gate": True},
    {"safe_gate": True, "lower_bound": -1.5},
]


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_every_gate(gate: dict[str, Any]) -> None:
    check(POOL.but(lengths=(1, 2, 4), options=gate))


@pytest.mark.parametrize(
    "options",
    [
        {"use_qk_l2norm_in_kernel": False},
        {"use_beta_sigmoid_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
        {"scale": 0.3},
    ],
    ids=str,
)
def test_every_option(options: dict[str, Any]) -> None:
    check(POOL.but(lengths=(1, 2, 4), options=options))


def test_gate_without_bias() -> None:
    call = make(POOL)
    call.arguments["dt_bias"] = None
    wanted = answer(POOL, call.arguments)
    out, _ = call(recurrent_kda)
    assert_rounded_once(out[0], wanted.out)


@pytest.mark.parametrize(
    ("dim_k", "dim_v"), [(128, 128), (256, 64), (64, 256), (16, 16), (80, 48), (208, 112)]
)
@pytest.mark.parametrize("v_first", [True, False])
def test_every_head_dim(dim_k: int, dim_v: int, v_first: bool) -> None:
    check(
        POOL.but(
            lengths=(1, 2, 1),
            dim_k=dim_k,
            dim_v=dim_v,
            heads=1,
            v_heads=3,
            options={"state_v_first": v_first},
        )
    )


@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_dtype(dtype: torch.dtype, state_dtype: torch.dtype) -> None:
    case = POOL.but(
        dtype=dtype,
        state_dtype=state_dtype,
        gate_dtype=torch.float32,
        beta_dtype=torch.float32,
        index_dtype=torch.int64,
        lengths=(1, 2, 1),
    )
    check(case)


def test_speculative_steps() -> None:
    check(SPECULATIVE)
    check(SPECULATIVE.but(state_dtype=torch.bfloat16))
    check(SPECULATIVE.but(options={"state_v_first": False, "output_final_state": True}))


def test_steps_below_the_skip_index_are_not_stored() -> None:
    indices = ((-1, 4, 5), (1, 2, 3), (6, -1, 8), (9, 10, 11), (12, 13, 14))
    check(SPECULATIVE.but(indices=indices, accepted=(1, 2, 1, 3, 1)))


def test_columns_without_accepted_tokens_start_at_the_first() -> None:
    check(SPECULATIVE.but(accepted=()))


@pytest.mark.parametrize("skip", [0, 1, 4])
def test_sequences_below_the_skip_index_are_zero(skip: int) -> None:
    case = POOL.but(lengths=(1, 2, 1), options={"skip_index_below": skip})
    check(case)
    call = make(case)
    out, _ = call(recurrent_kda)
    skipped = [0, 5, 3].index(0)
    assert (not out[0, 1:3].any()) == (skip > 0), skipped


def test_states_that_are_no_slots_are_not_skipped(nan_filled_memory: None) -> None:
    check(Case(lengths=(1, 1, 1), packed=False, options={"skip_index_below": 2}))
    check(Case(lengths=(1, 0, 2), options={"skip_index_below": 1}))


def test_an_index_past_the_pool_is_skipped() -> None:
    call = make(POOL.but(indices=(5, 7, 2**31 - 1)))
    before = call.state.clone()
    out, _ = call(recurrent_kda)
    assert out[0, 0].any()
    assert not out[0, 1:].any()
    assert torch.equal(call.state[:5], before[:5])
    assert torch.equal(call.state[6], before[6])


@pytest.mark.parametrize("indices", [(), (5, -1, 3)])
def test_new_states_leave_the_pool_alone(indices: tuple[int, ...]) -> None:
    options = {"inplace_final_state": False, "output_final_state": True}
    case = Case(lengths=(2, 0, 1), options=options)
    if indices:
        case = case.but(slots=7, indices=indices)
    check(case)
    call = make(case)
    _, final = call(recurrent_kda)
    assert final is not None
    assert final.shape == (3, *call.state.shape[1:])
    if indices:
        assert not final[1].any()
    else:
        assert torch.equal(final[1], call.state[1])


def test_a_pool_may_only_be_read() -> None:
    case = POOL.but(options={"inplace_final_state": False})
    check(case)
    assert make(case)(recurrent_kda)[1] is None


def test_strides_are_free() -> None:
    """Rows cut out of a wider projection, slots of a cache that holds more, indices by column."""
    case = POOL.but(lengths=(1, 2, 1), slots=7)
    call = make(case)
    wanted = answer(case, call.arguments)
    reference, _ = call(recurrent_kda)
    spread = make(case)
    for name in ("q", "k", "v", "raw_gate"):
        tensor = spread.arguments[name]
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 24), torch.nan).to(tensor)
        wide[..., 8:-16] = tensor
        spread.arguments[name] = wide[..., 8:-16]
    beta = spread.arguments["beta"]
    spread.arguments["beta"] = torch.stack([beta, torch.full_like(beta, torch.nan)], -1)[..., 0]
    pool = torch.full((7, 3, *spread.state.shape[1:]), torch.nan)
    pool[:, 1] = spread.state
    spread.arguments["state"] = pool[:, 1]
    indices = torch.full((3, 5), 99, dtype=torch.int32)
    indices[:, 2] = spread.arguments["ssm_state_indices"]
    spread.arguments["ssm_state_indices"] = indices[:, 2]
    out, _ = spread(recurrent_kda)
    assert torch.equal(out, reference)
    assert torch.equal(pool[:, 1], call.state)
    assert pool[:, 0].isnan().all()
    assert pool[:, 2].isnan().all()
    assert_rounded_once(out[0], wanted.out)


def test_unused_slots_may_hold_anything(nan_filled_memory: None) -> None:
    case = SPECULATIVE.but(dim_k=80, dim_v=48)
    clean = make(case)
    out, _ = clean(recurrent_kda)
    poisoned = make(case)
    read = [row[column - 1] for row, column in zip(case.indices, case.accepted, strict=True)]
    unread = [slot for slot in range(case.slots) if slot not in read]
    poisoned.state[unread] = torch.nan
    poisoned_out, _ = poisoned(recurrent_kda)
    assert torch.equal(out, poisoned_out)
    assert torch.isfinite(out).all()


def test_padding_rows_are_zero_and_unread(nan_filled_memory: None) -> None:
    case = POOL.but(lengths=(1, 0, 2), padding=3)
    call = make(case)
    for name in ("q", "k", "v", "raw_gate", "beta"):
        call.arguments[name][:, 3:] = torch.nan
    out, _ = call(recurrent_kda)
    assert torch.isfinite(out).all()
    assert not out[:, 3:].any()


def test_no_tokens_at_all() -> None:
    call = make(POOL.but(lengths=(0, 0, 0)))
    before = call.state.clone()
    out, _ = call(recurrent_kda)
    assert out.shape == (1, 0, 4, 64)
    assert torch.equal(call.state, before)
    options = {"inplace_final_state": False, "output_final_state": True}
    call = make(POOL.but(lengths=(0, 0, 0), options=options))
    _, final = call(recurrent_kda)
    assert final is not None
    assert torch.equal(final, call.state[[5, 0, 3]])


@pytest.mark.parametrize("bounded", [False, True])
def test_strong_gates_and_large_inputs_stay_finite(bounded: bool) -> None:
    case = POOL.but(lengths=(3, 3, 3), gate_dtype=torch.float32, options={"safe_gate": bounded})
    call = make(case)
    call.arguments["raw_gate"] *= 1e4
    call.arguments["q"] *= 1e3
    wanted = answer(case, call.arguments)
    out, _ = call(recurrent_kda)
    assert torch.isfinite(out).all()
    assert_rounded_once(out[0], wanted.out)


def test_a_sequence_does_not_depend_on_the_batch() -> None:
    case = POOL.but(lengths=(2, 3, 1))
    together = make(case)
    out, _ = together(recurrent_kda)
    alone = make(case)
    alone.arguments |= {
        name: alone.arguments[name][:, 2:5] for name in ("q", "k", "v", "raw_gate", "beta")
    }
    alone.arguments["cu_seqlens"] = torch.tensor([0, 3], dtype=torch.int32)
    alone.arguments["ssm_state_indices"] = torch.tensor([0], dtype=torch.int32)
    out_alone, _ = alone(recurrent_kda)
    assert torch.equal(out[:, 2:5], out_alone)
    assert torch.equal(together.state[0], alone.state[0])


def test_two_calls_equal_one() -> None:
    case = POOL.but(lengths=(4,), indices=(2,))
    whole, parts = make(case), make(case)
    out, _ = whole(recurrent_kda)
    rows = {name: parts.arguments[name] for name in ("q", "k", "v", "raw_gate", "beta")}
    outs = []
    for part in (slice(0, 1), slice(1, 4)):
        parts.arguments |= {name: x[:, part] for name, x in rows.items()}
        count = part.stop - part.start
        parts.arguments["cu_seqlens"] = torch.tensor([0, count], dtype=torch.int32)
        outs.append(parts(recurrent_kda)[0])
    assert torch.equal(torch.cat(outs, 1), out)
    assert torch.equal(whole.state, parts.state)


@pytest.mark.parametrize("case", [POOL.but(lengths=(2, 0, 1)), SPECULATIVE], ids=["pool", "steps"])
def test_reference_mode_answers_alike(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    native = make(case)
    out, _ = native(recurrent_kda)
    monkeypatch.setenv("FA_TRITON_CPU", "reference")
    plain = make(case)
    out_plain, _ = plain(recurrent_kda)
    torch.testing.assert_close(out_plain, out, atol=0.02, rtol=0.02)
    torch.testing.assert_close(plain.state, native.state, atol=1e-5, rtol=1e-5)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any lengths, slots in any order, some sequences skipped, one slot or some per sequence."""
    count = draw(st.integers(1, 4))
    lengths = tuple(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    steps = draw(st.sampled_from([1, 3]))
    slots = draw(st.permutations(range(count * steps + 2)))
    rows = [tuple(slots[n * steps : (n + 1) * steps]) for n in range(count)]
    skipped = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    rows = [(-1,) * steps if skip else row for row, skip in zip(rows, skipped, strict=True)]
    accepted = draw(st.lists(st.integers(1, steps), min_size=count, max_size=count))
    return Case(
        lengths=lengths,
        padding=draw(st.integers(0, 2)),
        layout=draw(st.sampled_from(["BSND", "BNSD", "TND", "NTD"])),
        heads=1,
        v_heads=draw(st.sampled_from([1, 3])),
        dim_k=draw(st.sampled_from([32, 48])),
        dim_v=32,
        slots=len(slots),
        indices=tuple(rows) if steps > 1 else tuple(row[0] for row in rows),
        accepted=tuple(accepted) if steps > 1 else (),
        seed=draw(st.integers(0, 9)),
        options={"output_final_state": draw(st.booleans())},
    )


@settings(max_examples=40, deadline=None)
@given(cases())
def test_any_batch(case: Case) -> None:
    check(case)


def test_slots_may_lie_beyond_32_bits() -> None:
    """Slots 2^31 elements apart in memory that exists where it is touched only."""
    case = POOL.but(heads=1, v_heads=1, state_dtype=torch.float16, slots=2, indices=(1,))
    case = case.but(lengths=(2,))
    near, far = make(case), make(case)
    count = 2**31 + near.state.numel()
    memory = torch.frombuffer(mmap.mmap(-1, 2 * count), dtype=torch.float16)
    state = memory.as_strided(near.state.shape, (2**31, *near.state.stride()[1:]))
    state.copy_(near.state)
    far.arguments["state"] = state
    assert torch.equal(far(recurrent_kda)[0], near(recurrent_kda)[0])
    assert torch.equal(state, near.state)
