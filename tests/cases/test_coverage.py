"""The check of plan tables: right ones pass, every kind of fault is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fa_triton import flash_attn_metadata
from fa_triton.cases.attention_call import describe_attention
from fa_triton.cases.case import AttentionCase
from fa_triton.cases.coverage import Coverage, check_coverage
from fa_triton.cases.files import parse_case
from fa_triton.cases.planning import plan_case
from fa_triton.cases.tensors import meta_arguments
from fa_triton.planner.schedule import CUT_AT_END, CUT_AT_START
from fa_triton.planner.table import HEADER_WORDS, SEGMENT_WORDS, read_header
from fa_triton.problem import AttnProblem
from fa_triton.validation import resolve_lengths, validate_flash_attn

CASES: dict[str, dict[str, Any]] = {
    "decode": {"B": 3, "N1": 8, "N2": 2, "S1": 1, "S2": 5000, "seqused_kv": [5000, 0, 900]},
    "prefill": {"B": 2, "N1": 4, "S1": 700, "S2": 900, "mask_mode": 3},
    "more queries than keys": {"B": 2, "N1": 6, "N2": 2, "S1": 300, "S2": 64, "mask_mode": 3},
    "window": {
        "B": 2, "N1": 4, "S1": 600, "S2": 600, "mask_mode": 4, "win_left": 200, "win_right": 5,
    },
    "far window": {
        "B": 2, "N1": 4, "S1": 300, "S2": 900, "mask_mode": 4, "win_left": 10, "win_right": 0,
        "seqused_q": [300, 7], "seqused_kv": [20, 900],
    },
    "packed": {
        "N1": 4, "N2": 1, "layout_q": "TND", "cu_seqlens_q": [0, 0, 100, 101, 400],
        "cu_seqlens_kv": [0, 500, 500, 2000, 2400], "mask_mode": 3,
    },
    "pages": {
        "B": 2, "N1": 4, "S1": 16, "S2": 3000, "layout_kv": "PA_BBND", "block_size": 64,
        "seqused_kv": [3000, 1],
    },
}  # fmt: skip

Planned = tuple[np.ndarray, AttnProblem, tuple[np.ndarray, np.ndarray]]


def planned(name: str, num_aic: int = 7) -> Planned:
    shared = {"D": 64, "Dtype": "fp16", "layout_q": "BSND"}
    case = parse_case(shared | CASES[name])
    assert isinstance(case, AttentionCase)
    call = describe_attention(case)
    problem = validate_flash_attn(**meta_arguments(call))
    words = plan_case(call, problem, torch.device("cpu"), num_aic=num_aic, num_aiv=2 * num_aic)
    return words.numpy().copy(), problem, resolve_lengths(problem, **call.lengths())


def segments(words: np.ndarray) -> np.ndarray:
    return words[HEADER_WORDS : read_header(words).vectors_offset].reshape(-1, SEGMENT_WORDS)


@pytest.mark.parametrize("num_aic", [1, 7, 20, 36])
@pytest.mark.parametrize("name", CASES)
def test_plans_cover_every_block_once(name: str, num_aic: int) -> None:
    coverage = check_coverage(*planned(name, num_aic))
    assert coverage.faults == ()
    assert coverage.segments >= 1


@pytest.mark.parametrize("name", CASES)
def test_blocks_are_those_of_the_mask(name: str) -> None:
    words, problem, lengths = planned(name)
    header = read_header(words)
    group = 1 if header.one_head_rows else problem.group
    left, right = problem.window
    row_blocks = blocks = 0
    for q_len, kv_len in zip(*(side.tolist() for side in lengths), strict=True):
        distance = torch.arange(kv_len)[None] - (torch.arange(q_len)[:, None] + kv_len - q_len)
        seen = torch.ones(q_len, kv_len, dtype=torch.bool)
        if left >= 0:
            seen &= distance >= -left
        if right >= 0:
            seen &= distance <= right
        rows = seen.repeat_interleave(group, 0)
        for row in rows.split(header.block_q) if q_len else ():
            row_blocks += problem.num_heads_q // group
            for tile in row.split(header.block_kv, 1) if kv_len else ():
                blocks += int(tile.any()) * problem.num_heads_q // group
    coverage = check_coverage(words, problem, lengths)
    assert (coverage.row_blocks, coverage.blocks) == (row_blocks, blocks)


Spoil = Callable[[np.ndarray], None]


def skip_a_row_block(found: np.ndarray) -> None:
    found[2, 7] -= 1


def visit_one_more(found: np.ndarray) -> None:
    found[3, 7] += 1


def start_late(found: np.ndarray) -> None:
    found[1, 2] += 1


def end_early(found: np.ndarray) -> None:
    found[0, 5] -= 1


def drop_a_segment(found: np.ndarray) -> None:
    found[2, 7] = 0


def drop_the_first(found: np.ndarray) -> None:
    found[0, 7] = 0


def drop_the_last(found: np.ndarray) -> None:
    found[-1, 7] = 0


def repeat_a_segment(found: np.ndarray) -> None:
    found[1] = found[0]


def forget_to_cut_the_start(found: np.ndarray) -> None:
    found[1, 8] &= ~CUT_AT_START


def forget_to_cut_the_end(found: np.ndarray) -> None:
    found[0, 8] &= ~CUT_AT_END


def leave_the_batch(found: np.ndarray) -> None:
    found[-1, 7] += 1


def cut_beyond_the_keys(found: np.ndarray) -> None:
    found[-1, 5] = 10**6
    found[-1, 8] |= CUT_AT_END


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("decode", skip_a_row_block),
        ("decode", visit_one_more),
        ("decode", start_late),
        ("decode", end_early),
        ("decode", drop_a_segment),
        ("decode", drop_the_first),
        ("decode", drop_the_last),
        ("decode", repeat_a_segment),
        ("decode", forget_to_cut_the_start),
        ("decode", forget_to_cut_the_end),
        ("decode", leave_the_batch),
        ("decode", cut_beyond_the_keys),
        ("prefill", visit_one_more),
        ("prefill", drop_a_segment),
        ("prefill", drop_the_first),
        ("prefill", drop_the_last),
        ("prefill", repeat_a_segment),
        ("prefill", cut_beyond_the_keys),
    ],
)
def test_faults_are_found(name: str, spoil: Spoil) -> None:
    words, problem, lengths = planned(name)
    assert not check_coverage(words, problem, lengths).faults
    spoil(segments(words))
    assert check_coverage(words, problem, lengths).faults


def test_rows_are_cut_where_the_faults_need_it() -> None:
    cuts = segments(planned("decode")[0])[:, 8]
    assert cuts[0] & CUT_AT_END
    assert cuts[1] & CUT_AT_START
    assert not segments(planned("prefill")[0])[:, 8].any()


def test_an_empty_table_is_a_fault() -> None:
    words, problem, lengths = planned("prefill")
    segments(words)[:, 7] = 0
    coverage = check_coverage(words, problem, lengths)
    assert "no segment visits" in coverage.faults[0]


def test_a_batch_without_queries_needs_no_segment() -> None:
    words, problem, lengths = planned("decode")
    segments(words)[:, 7] = 0
    nothing = (np.zeros_like(lengths[0]), lengths[1])
    assert check_coverage(words, problem, nothing) == Coverage(0, 0, 0, ())


def test_tables_of_the_other_planner_are_refused() -> None:
    _, problem, lengths = planned("prefill")
    words = flash_attn_metadata(
        4, 4, 64, batch_size=2, max_seqlen_q=700, max_seqlen_kv=900, mask_mode=3,
        planner="section_stream_k",
    ).numpy()  # fmt: skip
    with pytest.raises(ValueError, match=r"`words` must be a balanced table"):
        check_coverage(words, problem, lengths)
