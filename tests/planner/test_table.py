"""The header: what a table says about its problem, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fa_triton.planner import AttnWork, make_plan
from fa_triton.planner.cost import key_units, missing_units
from fa_triton.planner.table import check_header, encode, read_header, task_ranges

PROBLEM: dict[str, Any] = {
    "batch_size": 2, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 128, "mask_mode": 4,
    "win_left": 127, "win_right": 0, "layout_q": "TND",
}  # fmt: skip


def table(planner: str = "balanced", **options: Any) -> np.ndarray:
    arguments = {name: value for name, value in PROBLEM.items() if name != "batch_size"}
    work = AttnWork([1, 300], [5000, 300], **arguments, layout_out="TND")
    return encode(make_plan(planner, work, num_aic=4, num_aiv=8, **options))


@pytest.mark.parametrize("planner", ["balanced", "section_stream_k"])
def test_header_describes_the_plan(planner: str) -> None:
    header = read_header(table(planner, block_q=64, block_kv=256)[:16])
    assert (header.block_q, header.block_kv) == (64, 256)
    assert (header.num_aic, header.num_aiv) == (4, 8)
    assert (header.longest_q, header.longest_kv, header.batch_size) == (300, 5000, 2)
    assert header.slots_per_section == 0
    check_header(header, **PROBLEM, layout_out="TND")


def test_rows_of_one_head_are_word_6() -> None:
    assert read_header(table(one_head_rows=True)).one_head_rows
    assert not read_header(table()).one_head_rows
    # the code of the output layout is another meaning of the same word
    assert not read_header(table("section_stream_k")).one_head_rows


def test_fingerprint_is_stable_over_processes() -> None:
    assert read_header(table()).fingerprint == 2120811203


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_size", 3, "2 sequences and a batch of 3"),
        ("num_heads_q", 16, "num_heads_q=8 and a call with num_heads_q=16"),
        ("num_heads_kv", 8, "num_heads_kv=2 and a call with num_heads_kv=8"),
        ("head_dim", 64, "head_dim=128 and a call with head_dim=64"),
        ("mask_mode", 3, "mask_mode=4 and a call with mask_mode=3"),
        ("win_left", 128, "win_left=127 and a call with win_left=128"),
        ("win_right", -1, "win_right=0 and a call with win_right=-1"),
        ("layout_q", "BSND", "layout_q='TND' and a call with layout_q='BSND'"),
        ("layout_out", "BSND", "a table for TND and layout_out='BSND'"),
    ],
)
def test_foreign_tables_are_refused_by_name(name: str, value: int | str, message: str) -> None:
    header = read_header(table("section_stream_k"))
    with pytest.raises(ValueError, match="`metadata` must be made for") as error:
        check_header(header, **{**PROBLEM, name: value})
    assert message in str(error.value)


def test_several_differences_are_listed() -> None:
    with pytest.raises(ValueError, match="heads, head dim, mask, windows or query layout differ"):
        check_header(read_header(table()), **{**PROBLEM, "num_heads_q": 16, "head_dim": 64})


@pytest.mark.parametrize(
    "words",
    [
        np.zeros(16, dtype=np.int32),
        np.full(64, -1, dtype=np.int32),
        np.arange(1, 100, dtype=np.int32),
        np.zeros(3, dtype=np.int32),
        np.zeros((4, 16), dtype=np.int32),
    ],
)
def test_other_tensors_are_no_table(words: np.ndarray) -> None:
    with pytest.raises(ValueError, match="`metadata` must be"):
        read_header(words)


def test_vector_cores_share_the_task_list() -> None:
    work = AttnWork([1], [65536], 8, 1, 128)
    words = encode(make_plan("balanced", work, num_aic=4, num_aiv=8, block_q=64, block_kv=256))
    header = read_header(words)
    ranges = task_ranges(words)
    assert header.is_fd
    assert ranges[:, 1].sum() == header.num_tasks
    assert ranges[0, 0] == 0
    np.testing.assert_array_equal(ranges[1:, 0], (ranges[:, 0] + ranges[:, 1])[:-1])


def test_length_of_a_balanced_table_follows_its_tasks() -> None:
    work = AttnWork([1] * 4096, [1000] * 4096, 32, 8, 128)
    words = encode(make_plan("balanced", work, num_aic=24, num_aiv=48, block_q=64, block_kv=256))
    assert words.size < 20_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_lens": []}, "must be non-empty"),
        ({"kv_lens": [1]}, "of one length"),
        ({"kv_lens": [1, -1]}, "must not be negative"),
        ({"num_heads_q": 3}, "multiple of `num_heads_kv`"),
        ({"head_dim": 0}, "`head_dim` must be positive"),
        ({"mask_mode": 1}, "`mask_mode` must be one of"),
        ({"win_left": -2}, "at least -1"),
        ({"layout_q": "tnd"}, "`layout_q`"),
    ],
)
def test_meaningless_work_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "q_lens": [1, 1], "kv_lens": [1, 1], "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        AttnWork(**(arguments | changes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_aic": 0}, "`num_aic` and `num_aiv` must be positive"),
        ({"block_q": 0}, "`block_q` must be positive"),
        ({"block_kv": -1}, "`block_kv` must be positive"),
    ],
)
@pytest.mark.parametrize("planner", ["balanced", "section_stream_k"])
def test_unusable_options_are_refused(planner: str, options: dict[str, int], message: str) -> None:
    work = AttnWork([1], [1], 1, 1, 64)
    with pytest.raises(ValueError, match=message):
        make_plan(planner, work, **{"num_aic": 2, "num_aiv": 4, **options})


@pytest.mark.parametrize("block_keys", [16, 48, 64, 100, 256])
def test_missing_keys_save_what_their_block_does_not_cost(block_keys: int) -> None:
    missing = np.arange(block_keys)
    saved = key_units(block_keys) - key_units(block_keys - missing)
    np.testing.assert_array_equal(missing_units(block_keys, missing), saved)
