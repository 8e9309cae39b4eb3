"""A damaged table is refused by the word; every table that a planner writes passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton.planner import AttnWork, Plan, make_plan
from fa_triton.planner.table import encode, read_header
from fa_triton.planner.table_check import check_table
from tests.planner.works import attn_works, block_sizes, machines

FORMS: list[tuple[str, dict[str, bool]]] = [
    ("section_stream_k", {}),
    ("balanced", {}),
    ("balanced", {"one_head_rows": True}),
    ("balanced", {"batch_invariant": True}),
    ("balanced", {"from_bounds": True}),
]


@st.composite
def plans(draw: st.DrawFn, forms: list[tuple[str, dict[str, bool]]] = FORMS) -> Plan:
    planner, form = draw(st.sampled_from(forms))
    work = draw(attn_works(longest_kv=draw(st.sampled_from([300, 5000]))))
    return make_plan(planner, work, **draw(machines()), **draw(block_sizes()), **form)


def check(words: np.ndarray, work: AttnWork) -> None:
    check_table(
        words,
        num_heads_q=work.num_heads_q,
        num_heads_kv=work.num_heads_kv,
        head_dim=work.head_dim,
    )


@given(plans())
@settings(max_examples=200, deadline=None)
def test_planned_tables_pass(plan: Plan) -> None:
    words = encode(plan)
    before = words.copy()
    check(words, plan.work)
    np.testing.assert_array_equal(words, before)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_word_of_a_balanced_table_can_be_damaged(data: st.DataObject) -> None:
    """One word more or less; what only the lengths can tell is left out."""
    plan = data.draw(plans(FORMS[1:]))
    words = encode(plan)
    header = read_header(words)
    word = data.draw(st.integers(16, header.used_words - 1))
    damage = data.draw(st.sampled_from([-(2**31), -1000, -1, 1, 2, 7, 2**30]))
    if word < header.vectors_offset:
        segment, column = divmod(word - 16, 16)
        first = min(map(tuple, plan.starts[plan.row_blocks > 0].tolist()), default=None)
        is_first = tuple(plan.starts[segment].tolist()) == first
        # where the line begins, and how many empty row blocks lie between two heads
        if (is_first and column in (0, 2)) or (column == 7 and words[word] > 0):
            return
    elif word >= header.tasks_offset and (word - header.tasks_offset) % 8 == 5:
        return
    words[word] = np.int64(words[word]) + damage if abs(damage) < 2**29 else damage
    with pytest.raises(ValueError, match=r"`metadata` must"):
        check(words, plan.work)


def decode_table(planner: str = "balanced", **options: Any) -> tuple[np.ndarray, AttnWork]:
    work = AttnWork([1, 1], [9000, 300], 8, 2, 128, mask_mode=3)
    plan = make_plan(planner, work, num_aic=4, num_aiv=8, block_q=16, block_kv=128, **options)
    return encode(plan), work


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (16, 5, "got 5 in word 16, start head entry of segment 0"),
        (16 + 16 + 4, 1, "got 1 in word 36, end row block of segment 1"),
        (16 + 16 + 5, 71, "got 71 in word 37, end key block of segment 1"),
        (16 + 6, 1, "got 1 in word 22, first slot of segment 0"),
        (16 + 8, 1, "got 1 in word 24, cut flags of segment 0"),
        (16 + 9, 1, "got 1 in word 25, a word that must be 0 of segment 0"),
    ],
)
def test_the_word_is_named(word: int, value: int, message: str) -> None:
    words, work = decode_table()
    words[word] = value
    with pytest.raises(ValueError, match="as flash_attn_metadata made it") as error:
        check(words, work)
    assert message in str(error.value)


def test_tasks_are_named() -> None:
    words, work = decode_table()
    header = read_header(words)
    for column, name in enumerate(["head entry", "row block", "first slot", "number of slots"]):
        damaged = words.copy()
        damaged[header.tasks_offset + column] += 1
        with pytest.raises(ValueError, match=f"word {header.tasks_offset + column}, {name}"):
            check(damaged, work)


def test_words_that_are_missing() -> None:
    words, work = decode_table()
    with pytest.raises(ValueError, match=f"must have the {words.size} words"):
        check(words[:-1], work)


@pytest.mark.parametrize("column", [0, 1, 2, 3, 5])
def test_section_stream_k_tables(column: int) -> None:
    words, work = decode_table("section_stream_k")
    check(words, work)
    header = read_header(words)
    assert header.is_fd
    segments = words.copy()
    segments[16 + column] = 1000
    with pytest.raises(ValueError, match="segment 0"):
        check(segments, work)
    tasks = words.copy()
    tasks[header.vectors_offset + column] = 1000
    with pytest.raises(ValueError, match="combine segment 0"):
        check(tasks, work)
