"""Short convolutions against a literal float64 loop over sequences, tokens and taps."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton import causal_conv1d_fn, causal_conv1d_update


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def filter_tokens(
    history: torch.Tensor, tokens: torch.Tensor, weight: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Result ``[dim, L]`` of tokens that follow ``history`` ``[dim, width - 1]``."""
    line = torch.cat([history.double(), tokens.double()], 1)
    width = weight.shape[1]
    out = torch.zeros(tokens.shape, dtype=torch.float64)
    for t in range(tokens.shape[1]):
        for tap in range(width):
            out[:, t] += weight[:, tap].double() * line[:, t + tap]
    if options.get("bias") is not None:
        out += options["bias"].double()[:, None]
    return torch.nn.functional.silu(out) if options.get("activation") else out


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Every element is the float64 result, rounded once, up to the arithmetic in fp32."""
    if not wanted.numel():
        return
    rounding = torch.finfo(got.dtype).eps / 2 * wanted.abs()
    arithmetic = 2e-6 * wanted.abs().max()
    assert bool(((got.double() - wanted).abs() <= 1.01 * rounding + arithmetic).all())


def states_of(slots: int, dim: int, columns: int, dtype: torch.dtype, order: str) -> torch.Tensor:
    """States whose channels, or whose tokens, lie side by side."""
    if order == "channels":
        return rand(slots, columns, dim, dtype=dtype, seed=7).transpose(1, 2)
    return rand(slots, dim, columns, dtype=dtype, seed=7)


def check_fn(
    lengths: list[int],
    slots: list[int],
    kept: list[bool],
    *,
    dim: int = 40,
    width: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    state_dtype: torch.dtype | None = None,
    order: str = "channels",
    padding: int = 0,
    has_bias: bool = True,
    activation: str | None = "silu",
    extra_columns: int = 0,
) -> None:
    total = sum(lengths) + padding
    x = rand(total, dim, dtype=dtype).t()
    weight = rand(dim, width, dtype=dtype, seed=1)
    bias = rand(dim, dtype=dtype, seed=2) if has_bias else None
    states = states_of(9, dim, width - 1 + extra_columns, state_dtype or dtype, order)
    before = states.clone()
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    out = causal_conv1d_fn(
        x,
        weight,
        bias,
        activation,
        states,
        torch.tensor(kept),
        torch.tensor(slots, dtype=torch.int32),
        starts,
    )
    assert out.shape == x.shape
    wanted = torch.zeros(x.shape, dtype=torch.float64)
    expected = before.clone()
    for n, (length, slot) in enumerate(zip(lengths, slots, strict=True)):
        first = int(starts[n])
        if slot < 0 or not length:
            continue
        history = before[slot, :, : width - 1].clone()
        history = history if kept[n] else torch.zeros_like(history)
        tokens = x[:, first : first + length]
        wanted[:, first : first + length] = filter_tokens(
            history, tokens, weight, bias=bias, activation=activation
        )
        line = torch.cat([history, tokens.to(history)], 1)
        expected[slot, :, : width - 1] = line[:, line.shape[1] - (width - 1) :]
    assert_close(out, wanted)
    assert torch.equal(out[:, sum(lengths) :], torch.zeros_like(out[:, sum(lengths) :]))
    assert torch.equal(states, expected)


@pytest.mark.parametrize("order", ["channels", "tokens"])
@pytest.mark.parametrize("width", [2, 3, 4, 5])
def test_prefill_of_packed_sequences(width: int, order: str) -> None:
    check_fn(
        [5, 0, 1, 2, 40, 3],
        [4, 1, 0, 8, 3, -1],
        [True, True, False, True, False, True],
        width=width,
        order=order,
        padding=3,
    )


@pytest.mark.parametrize(
    "case",
    [
        {"dim": 300},
        {"dim": 1},
        {"dtype": torch.float16, "state_dtype": torch.float32},
        {"dtype": torch.float32},
        {"has_bias": False, "activation": None},
        {"activation": "swish", "extra_columns": 2},
    ],
    ids=str,
)
def test_every_form_of_prefill(case: dict[str, Any]) -> None:
    check_fn([70, 2, 3], [2, 5, 0], [True, True, False], **case)


def test_parts_of_one_long_sequence_meet() -> None:
    check_fn([1000], [3], [True], dim=16)
    check_fn([17, 900], [3, 1], [True, True], dim=16)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 5),
    st.sampled_from([24, 64]),
)
def test_prefill_of_any_lengths(
    sequences: list[tuple[int, bool, bool]], padding: int, dim: int
) -> None:
    lengths = [length for length, _, _ in sequences]
    slots = [n if there else -1 for n, (_, there, _) in enumerate(sequences)]
    check_fn(lengths, slots, [kept for _, _, kept in sequences], dim=dim, padding=padding)


def test_prefill_without_states_of_equal_sequences() -> None:
    x, weight = rand(2, 24, 9), rand(24, 4, seed=1)
    out = causal_conv1d_fn(x, weight)
    assert out.shape == x.shape
    for n in range(2):
        wanted = filter_tokens(torch.zeros(24, 3), x[n], weight, activation="silu")
        assert_close(out[n], wanted)


def test_prefill_in_two_parts_equals_one() -> None:
    x, weight = rand(50, 32).t(), rand(32, 4, seed=1)
    whole, parts = rand(1, 3, 32, seed=3).transpose(1, 2), rand(1, 3, 32, seed=3).transpose(1, 2)
    out = causal_conv1d_fn(x, weight, conv_states=whole)
    first = causal_conv1d_fn(x[:, :21], weight, conv_states=parts)
    kept = torch.tensor([True])
    second = causal_conv1d_fn(x[:, 21:], weight, conv_states=parts, has_initial_state=kept)
    assert torch.equal(torch.cat([first, second], 1), out)
    assert torch.equal(whole, parts)


def check_update(
    lengths: list[int],
    slots: list[int],
    *,
    form: str = "packed",
    accepted: list[int] | None = None,
    dim: int = 40,
    width: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    order: str = "channels",
    padding: int = 0,
    extra_columns: int = 0,
    activation: str | None = "silu",
) -> None:
    longest = max(lengths)
    weight, bias = rand(dim, width, dtype=dtype, seed=1), rand(dim, dtype=dtype, seed=2)
    columns = width - 1 + (longest - 1 if accepted else 0) + extra_columns
    state = states_of(9, dim, columns, dtype, order)
    before = state.clone()
    options: dict[str, Any] = {"conv_state_indices": torch.tensor(slots, dtype=torch.int32)}
    if accepted:
        options["num_accepted_tokens"] = torch.tensor(accepted, dtype=torch.int32)
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    if form == "packed":
        x = rand(sum(lengths) + padding, dim, dtype=dtype)
        options |= {"query_start_loc": starts, "max_query_len": longest}
        parts = [x[starts[n] : starts[n + 1]].t() for n in range(len(lengths))]
    else:
        x = rand(len(lengths), dim, longest, dtype=dtype)
        x = x[..., 0] if form == "single" else x
        parts = list(x if form == "several" else x[..., None])
    out = causal_conv1d_update(x, state, weight, bias, activation, **options)
    assert out.shape == x.shape
    if form == "packed":
        outs = [out[starts[n] : starts[n + 1]].t() for n in range(len(lengths))]
        assert not out[sum(lengths) :].any()
    else:
        outs = list(out if form == "several" else out[..., None])
    expected = before.clone()
    for n, slot in enumerate(slots):
        if slot < 0 or not lengths[n]:
            assert not outs[n].any()
            continue
        first = accepted[n] - 1 if accepted else 0
        history = before[slot, :, first : first + width - 1]
        wanted = filter_tokens(history, parts[n], weight, bias=bias, activation=activation)
        assert_close(outs[n], wanted)
        line = torch.cat([history, parts[n]], 1)
        line = line[:, 1:] if accepted else line[:, line.shape[1] - (width - 1) :]
        expected[slot, :, : line.shape[1]] = line
    assert torch.equal(state, expected)


@pytest.mark.parametrize("width", [2, 3, 4, 5])
@pytest.mark.parametrize("form", ["single", "several", "packed"])
def test_decode_of_one_token(form: str, width: int) -> None:
    check_update([1, 1, 1, 1], [3, -1, 0, 8], form=form, width=width)


@pytest.mark.parametrize("order", ["channels", "tokens"])
@pytest.mark.parametrize("accepted", [None, [1, 3, 2, 2]])
def test_decode_of_several_tokens(accepted: list[int] | None, order: str) -> None:
    check_update([3, 3, 3, 3], [3, -1, 0, 8], form="several", accepted=accepted, order=order)
    check_update(
        [3, 1, 0, 2],
        [3, 1, 0, 8],
        accepted=accepted,
        order=order,
        padding=2,
        extra_columns=1,
        activation=None,
    )


@pytest.mark.parametrize(
    "case",
    [{"dim": 300}, {"dtype": torch.float16}, {"dtype": torch.float32}, {"extra_columns": 4}],
    ids=str,
)
def test_every_form_of_decode(case: dict[str, Any]) -> None:
    check_update([1, 1, 1], [2, 5, 0], form="single", **case)
    check_update([12, 0, 5], [2, 5, 0], **case)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 4)), min_size=1, max_size=5
    ).filter(lambda rows: any(row[0] for row in rows)),
    st.booleans(),
)
def test_decode_of_any_lengths(rows: list[tuple[int, bool, int]], speculative: bool) -> None:
    lengths = [length for length, _, _ in rows]
    slots = [n if there else -1 for n, (_, there, _) in enumerate(rows)]
    accepted = [min(count, max(lengths)) for _, _, count in rows] if speculative else None
    check_update(lengths, slots, accepted=accepted)


def test_steps_equal_prefill() -> None:
    x, weight, bias = rand(12, 48), rand(48, 4, seed=1), rand(48, seed=2)
    state = torch.zeros(2, 3, 48, dtype=torch.bfloat16).transpose(1, 2)
    out = causal_conv1d_fn(x.t(), weight, bias, conv_states=state[:1])
    steps = [causal_conv1d_update(x[t : t + 1], state[1:], weight, bias, "silu") for t in range(12)]
    assert torch.equal(torch.cat(steps), out.t())
    assert torch.equal(state[0], state[1])


def test_nothing_but_what_is_named_is_read(nan_filled_memory: None) -> None:
    """States of new sequences, slots of others and padding rows may hold anything."""
    weight = rand(40, 4, seed=1)
    states = torch.full((5, 3, 40), torch.nan, dtype=torch.bfloat16).transpose(1, 2)
    x = rand(12, 40)
    x[9:] = torch.nan
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)
    slots = torch.tensor([3, 1], dtype=torch.int32)
    out = causal_conv1d_fn(x.t(), weight, None, "silu", states, None, slots, query_start_loc=starts)
    assert torch.isfinite(out).all()
    assert torch.isfinite(states[[1, 3]]).all()
    assert states[[0, 2, 4]].isnan().all()
    again = causal_conv1d_update(x[:2], states, weight, conv_state_indices=slots)
    assert torch.isfinite(again).all()


@pytest.mark.forked
def test_taps_may_lie_far_apart() -> None:
    """In memory that exists where it is touched only."""
    x, weight = rand(9, 32), rand(32, 4, seed=1)
    memory = torch.frombuffer(mmap.mmap(-1, 2 * (3 * 2**30 + 32)), dtype=torch.bfloat16)
    far = memory.as_strided((32, 4), (1, 2**30))
    far.copy_(weight)
    assert torch.equal(causal_conv1d_fn(x.t(), far), causal_conv1d_fn(x.t(), weight))


def test_an_index_outside_the_states_is_skipped() -> None:
    weight, states = rand(16, 4, seed=1), rand(3, 3, 16, seed=2).transpose(1, 2)
    before = states.clone()
    slots = torch.tensor([3, -7], dtype=torch.int64)
    out = causal_conv1d_update(rand(2, 16), states, weight, conv_state_indices=slots)
    assert not out.any()
    assert torch.equal(states, before)


INTERPRETED = """
import torch
from tests.kda_layer.test_convolution import check_fn, check_update

check_fn([2, 0, 19], slots=[3, 1, 0], kept=[True, True, False])
check_update([1, 3, 0], [2, 0, 1])
print("done")
"""


def test_reference_mode_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[torch.Tensor]:
        weight, states = rand(24, 4, seed=1), rand(3, 5, 24, seed=2).transpose(1, 2)
        starts, slots = torch.tensor([0, 5, 7]), torch.tensor([2, 0])
        kept = torch.tensor([True, False])
        out = causal_conv1d_fn(rand(7, 24).t(), weight, None, "silu", states, kept, slots, starts)
        steps = causal_conv1d_update(
            rand(2, 24, 3), states, weight, None, None, slots, torch.tensor([1, 3])
        )
        return [out, steps, states]

    native = run()
    monkeypatch.setenv("FA_TRITON_CPU", "reference")
    for plain, fast in zip(run(), native, strict=True):
        torch.testing.assert_close(plain, fast, atol=0.02, rtol=0.02)


def test_the_interpreter_answers_alike(repo_root: Path) -> None:
    environment = os.environ | {"FA_TRITON_CPU": "interpreter", "PYTHONPATH": str(repo_root)}
    process = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert process.stdout == "done\n", process.stderr
