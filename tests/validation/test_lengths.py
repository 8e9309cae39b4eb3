"""Values of lengths: their rules, the actual lengths, and bounds without reading a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fa_triton.problem import AttnProblem
from fa_triton.validation import (
    bound_lengths,
    check_lengths_on_host,
    lengths_to_plan,
    resolve_lengths,
    validate_flash_attn,
    validate_metadata,
    value_checks_enabled,
)
from tests.validation.calls import dense, ints, metadata, packed, packed_metadata


def lengths(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def packed_problem(**changes: Any) -> AttnProblem:
    return validate_flash_attn(**packed(**changes))


CU = {"cu_seqlens_q": lengths(0, 8, 8, 20), "cu_seqlens_kv": lengths(0, 10, 25, 40)}


def test_dense_lengths_are_the_sequence_axis() -> None:
    q_lens, kv_lens = resolve_lengths(validate_flash_attn(**dense()))
    assert (q_lens.tolist(), kv_lens.tolist()) == ([8, 8], [16, 16])
    assert q_lens.dtype == kv_lens.dtype == np.int64


def test_used_lengths_win_over_the_sequence_axis() -> None:
    problem = validate_flash_attn(**dense(seqused_q=ints(2), seqused_kv=ints(2)))
    q_lens, kv_lens = resolve_lengths(problem, seqused_q=lengths(0, 8), seqused_kv=lengths(16, 5))
    assert (q_lens.tolist(), kv_lens.tolist()) == ([0, 8], [16, 5])


def test_packed_lengths_are_differences() -> None:
    q_lens, kv_lens = resolve_lengths(packed_problem(), **CU)
    assert (q_lens.tolist(), kv_lens.tolist()) == ([8, 0, 12], [10, 15, 15])


def test_used_lengths_win_over_packed_ones() -> None:
    problem = packed_problem(seqused_q=ints(3), seqused_kv=ints(3))
    q_lens, kv_lens = resolve_lengths(
        problem, **CU, seqused_q=lengths(3, 0, 12), seqused_kv=lengths(0, 15, 1)
    )
    assert (q_lens.tolist(), kv_lens.tolist()) == ([3, 0, 12], [0, 15, 1])


@pytest.mark.parametrize("form", [np.asarray, list, tuple])
def test_host_values_of_any_form(form: Any) -> None:
    cu = {name: form(value.tolist()) for name, value in CU.items()}
    q_lens, _ = resolve_lengths(packed_problem(), **cu)
    assert q_lens.tolist() == [8, 0, 12]


def test_paged_lengths_of_a_plan() -> None:
    problem = validate_metadata(
        **metadata(layout_kv="PA_BBND", seqused_kv=ints(3), max_seqlen_kv=None)
    )
    _, kv_lens = resolve_lengths(problem, seqused_kv=lengths(1, 0, 99999))
    assert kv_lens.tolist() == [1, 0, 99999]


@pytest.mark.parametrize(
    ("call", "values", "says"),
    [
        (packed(), {"cu_seqlens_q": [1, 8, 8, 20]}, ("`cu_seqlens_q[0]`", "0", "got 1")),
        (packed(), {"cu_seqlens_q": [0, 9, 8, 20]}, ("`cu_seqlens_q`", "decrease", "got 9 at 1")),
        (packed(), {"cu_seqlens_kv": [0, 9, 8, 41]}, ("`cu_seqlens_kv`", "got 9 at 1 and 8 at 2")),
        (packed(), {"cu_seqlens_kv": [0, 9, 9, 41]}, ("`cu_seqlens_kv[-1]`", "T = 40", "got 41")),
        (packed(), {"cu_seqlens_q": [0, 8, 20]}, ("`cu_seqlens_q`", "(4,)", "got (3,)")),
        (packed(), {"cu_seqlens_q": None}, ("`cu_seqlens_q`", "given", "got None")),
        (packed(), {"seqused_q": [1, 1, 1]}, ("`seqused_q`", "None", "got a value")),
        (
            packed(seqused_q=ints(3)),
            {"seqused_q": [8, 1, 1]},
            ("`seqused_q[1]`", "0 and 0", "got 1"),
        ),
        (packed(max_seqlen_q=11), {}, ("`max_seqlen_q`", "12", "got 11")),
        (dense(seqused_kv=ints(2)), {"seqused_kv": [16, 17]}, ("`seqused_kv[1]`", "16", "got 17")),
        (dense(seqused_q=ints(2)), {"seqused_q": [-1, 8]}, ("`seqused_q[0]`", "0", "got -1")),
        (dense(seqused_q=ints(2)), {"seqused_q": [8]}, ("`seqused_q`", "(2,)", "got (1,)")),
        (
            dense(seqused_kv=ints(2), max_seqlen_kv=9),
            {"seqused_kv": [3, 10]},
            ("`max_seqlen_kv`", "10", "got 9"),
        ),
    ],
)
def test_wrong_values(call: dict[str, Any], values: dict[str, Any], says: tuple[str, ...]) -> None:
    problem = validate_flash_attn(**call)
    given_values = dict(CU) if problem.layout_q == "TND" else {}
    given_values |= values
    with pytest.raises(ValueError, match="must") as caught:
        check_lengths_on_host(problem, **given_values)
    for part in says:
        assert part in str(caught.value)
    with pytest.raises(ValueError, match="must"):
        resolve_lengths(problem, **given_values)


def test_right_values_pass() -> None:
    check_lengths_on_host(packed_problem(max_seqlen_q=12), **CU)


def test_bounds_of_dense_lengths() -> None:
    problem = validate_flash_attn(**dense(seqused_q=ints(2), seqused_kv=ints(2), max_seqlen_kv=5))
    q_lens, kv_lens = bound_lengths(problem)
    assert (q_lens.tolist(), kv_lens.tolist()) == ([8, 8], [5, 5])


def test_bounds_of_packed_lengths() -> None:
    q_lens, kv_lens = bound_lengths(packed_problem(max_seqlen_q=6, max_seqlen_kv=1000))
    assert (q_lens.tolist(), kv_lens.tolist()) == ([6, 6, 6], [40, 40, 40])


def test_bounds_need_a_source() -> None:
    problem = validate_metadata(**packed_metadata())
    with pytest.raises(ValueError, match="`max_seqlen_q` must be given"):
        bound_lengths(problem)


def test_a_bound_stands_for_lengths_on_an_accelerator() -> None:
    """A meta tensor has no values: reading one would fail."""
    call = packed(max_seqlen_q=6, max_seqlen_kv=30)
    problem = validate_flash_attn(**call)
    tensors = {name: call[name] for name in ("cu_seqlens_q", "cu_seqlens_kv")}
    planned = lengths_to_plan(problem, avoid_reading=True, **tensors)
    assert (planned.q.tolist(), planned.kv.tolist()) == ([6, 6, 6], [30, 30, 30])
    assert planned.are_bounds


def test_one_bound_is_enough_for_one_side_with_lengths() -> None:
    call = dense(seqused_kv=ints(2), max_seqlen_kv=9)
    planned = lengths_to_plan(
        validate_flash_attn(**call), avoid_reading=True, seqused_kv=call["seqused_kv"]
    )
    assert (planned.q.tolist(), planned.kv.tolist()) == ([8, 8], [9, 9])
    assert planned.are_bounds


@pytest.mark.parametrize("bounds", [{}, {"max_seqlen_q": 12}, {"max_seqlen_kv": 15}])
def test_lengths_without_bounds_are_read(bounds: dict[str, int]) -> None:
    planned = lengths_to_plan(packed_problem(**bounds), avoid_reading=True, **CU)
    assert (planned.q.tolist(), planned.kv.tolist()) == ([8, 0, 12], [10, 15, 15])
    assert not planned.are_bounds


def test_axes_are_lengths() -> None:
    assert not lengths_to_plan(validate_flash_attn(**dense()), avoid_reading=True).are_bounds
    assert not lengths_to_plan(validate_metadata(**metadata()), avoid_reading=False).are_bounds


def test_lengths_that_may_be_read_are_read() -> None:
    problem = packed_problem(max_seqlen_q=12, max_seqlen_kv=15)
    planned = lengths_to_plan(problem, avoid_reading=False, **CU)
    assert planned.q.tolist() == [8, 0, 12]
    assert not planned.are_bounds


@pytest.mark.parametrize(
    ("changes", "are_bounds"),
    [
        ({}, False),
        ({"cu_seqlens_kv": None, "max_seqlen_kv": 9}, True),
        ({"cu_seqlens_kv": None, "seqused_kv": lengths(1, 2, 3)}, False),
        ({"cu_seqlens_q": None, "max_seqlen_q": 2}, True),
        # decoding: queries of one token, there or not
        ({"cu_seqlens_q": None, "max_seqlen_q": 1}, False),
        ({"layout_kv": "PA_NZ", "cu_seqlens_kv": None, "max_seqlen_kv": 99}, True),
    ],
)
def test_a_plan_knows_that_it_has_bounds_only(changes: dict[str, Any], are_bounds: bool) -> None:
    call = packed_metadata(**(CU | changes))
    tensors = {
        name: call.get(name)
        for name in ("cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv")
    }
    planned = lengths_to_plan(validate_metadata(**call), avoid_reading=False, **tensors)
    assert planned.are_bounds is are_bounds


@given(
    segments=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
    tail=st.integers(0, 5),
    data=st.data(),
)
def test_actual_lengths_lie_within_their_bounds(
    segments: list[tuple[int, int]], tail: int, data: st.DataObject
) -> None:
    q_lens = [q_len for q_len, _ in segments]
    kv_lens = [kv_len for _, kv_len in segments]
    used = [data.draw(st.integers(0, kv_len)) for kv_len in kv_lens]
    size = len(segments)
    problem = validate_flash_attn(
        **packed(
            q=torch.empty(sum(q_lens) + tail + 1, 4, 64, device="meta"),
            k=torch.empty(sum(kv_lens) + tail + 1, 2, 64, device="meta"),
            v=torch.empty(sum(kv_lens) + tail + 1, 2, 64, device="meta"),
            cu_seqlens_q=ints(size + 1),
            cu_seqlens_kv=ints(size + 1),
            seqused_kv=ints(size),
            max_seqlen_q=max(q_lens),
        )
    )
    got_q, got_kv = resolve_lengths(
        problem,
        cu_seqlens_q=np.cumsum([0, *q_lens]),
        cu_seqlens_kv=np.cumsum([0, *kv_lens]),
        seqused_kv=used,
    )
    assert (got_q.tolist(), got_kv.tolist()) == (q_lens, used)
    bound_q, bound_kv = bound_lengths(problem)
    assert (got_q <= bound_q).all()
    assert (got_kv <= bound_kv).all()


def test_value_checks_are_opt_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FA_TRITON_CHECK_VALUES", raising=False)
    assert not value_checks_enabled()
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")
    assert value_checks_enabled()
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "yes")
    with pytest.raises(ValueError, match="FA_TRITON_CHECK_VALUES"):
        value_checks_enabled()
