"""SectionStreamK against recorded plans, word by word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_triton.planner import AttnWork, make_plan
from fa_triton.planner.section_stream_k import base_sizes
from fa_triton.planner.table import encode, read_header

GOLDEN = Path(__file__).parent / "data" / "section_stream_k_golden.json"
VECTORS: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["vectors"]
# the recorded plans leave them out, and words 7.. of the header are this project's
FREE_WORDS = slice(4, 16)


def golden_work(vector: dict[str, Any]) -> AttnWork:
    names = (
        "q_lens", "kv_lens", "num_heads_q", "num_heads_kv", "head_dim", "mask_mode", "win_left",
        "win_right", "layout_q", "max_seqlen_q", "max_seqlen_kv",
    )  # fmt: skip
    return AttnWork(**{name: vector[name] for name in names})


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_every_word_of_a_recorded_plan(vector: dict[str, Any]) -> None:
    plan = make_plan(
        "section_stream_k", golden_work(vector), num_aic=vector["aic"], num_aiv=vector["aiv"]
    )
    words = encode(plan)
    expected = np.zeros(vector["tensor_len"], dtype=np.int32)
    for index, word in vector["nonzero_words"].items():
        expected[int(index)] = word
    expected[FREE_WORDS] = words[FREE_WORDS]
    np.testing.assert_array_equal(words, expected)

    header = read_header(words)
    assert header.used_words == vector["words_used"]
    assert (header.block_q, header.block_kv) == (vector["m_base"], vector["s2_base"])
    assert (header.num_sections, header.is_fd) == (vector["section_num"], vector["is_fd"])
    assert (header.num_aic, header.num_aiv) == (vector["aic"], vector["aiv"])
    assert header.planner == 0


def decode_work(**changes: Any) -> AttnWork:
    arguments: dict[str, Any] = {
        "q_lens": [1], "kv_lens": [4096], "num_heads_q": 32, "num_heads_kv": 8, "head_dim": 128,
        "mask_mode": 3, "max_seqlen_q": 1, "max_seqlen_kv": 4096,
    }  # fmt: skip
    return AttnWork(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (64, 256)),
        ({"max_seqlen_q": -1}, (128, 128)),
        ({"max_seqlen_q": 65}, (128, 128)),
        ({"max_seqlen_kv": 128}, (128, 128)),
        ({"mask_mode": 4, "win_left": 128, "win_right": 0}, (128, 128)),
        ({"mask_mode": 4, "win_left": 129, "win_right": 0}, (64, 256)),
        ({"head_dim": 256}, (64, 256)),
        ({"head_dim": 256, "max_seqlen_q": 16}, (128, 128)),
    ],
)
def test_base_sizes_follow_the_arguments(
    changes: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert base_sizes(decode_work(**changes), 20, 40) == expected


def test_given_block_sizes_win() -> None:
    plan = make_plan(
        "section_stream_k", decode_work(), num_aic=20, num_aiv=40, block_q=16, block_kv=128
    )
    assert (plan.block_q, plan.block_kv) == (16, 128)


def test_layout_of_the_output_is_word_6() -> None:
    for code, layout in enumerate(("BSND", "BNSD", "TND")):
        plan = make_plan("section_stream_k", decode_work(layout_out=layout), num_aic=4, num_aiv=8)
        assert encode(plan)[6] == code


def test_slots_of_sections_do_not_meet() -> None:
    work = AttnWork([65536] * 2, [65536] * 2, 2, 2, 128, mask_mode=3, layout_q="TND")
    plan = make_plan("section_stream_k", work, num_aic=36, num_aiv=72)
    header = read_header(encode(plan))
    assert header.num_sections == 4
    assert header.slots_per_section > 0
    assert header.num_slots == header.num_sections * header.slots_per_section


def test_refuses_fewer_vector_cores_than_cube_cores() -> None:
    with pytest.raises(ValueError, match="`num_aiv` must be at least `num_aic`"):
        make_plan("section_stream_k", decode_work(), num_aic=4, num_aiv=3)


def test_refuses_rows_of_one_head() -> None:
    with pytest.raises(ValueError, match="`one_head_rows` must be False"):
        make_plan("section_stream_k", decode_work(), num_aic=4, num_aiv=8, one_head_rows=True)
