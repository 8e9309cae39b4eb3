"""The peers of the planner benchmark: their published rules, and that they cover every key once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fa_triton.planner import AttnWork
from fa_triton.planner.cost import CYCLES_PER_UNIT
from perf.planner_peers import PEERS, Problem
from perf.planner_peers.fa3 import launch_order, sequence_splits, split_bound
from perf.planner_peers.flashinfer import chunk_keys
from perf.planner_peers.items import cut_into_chunks, next_free_core, round_robin
from perf.planner_plot import fill_document
from perf.planner_timing import measure, planning_cases
from perf.planner_workloads import planner_workloads
from perf.run import app
from tests.planner.works import attn_works


@pytest.mark.parametrize(
    ("row_blocks", "cores", "key_blocks", "expected"),
    [
        # the example in the published heuristic: 48 blocks, 108 cores, 2 splits fill best
        (48, 108, 100, 2),
        # almost full, too few key blocks
        (87, 108, 100, 1),
        (8, 108, 4, 1),
        # 31 of 36 cores is the first count above 85% of a full wave
        (1, 36, 512, 31),
        (8, 36, 16, 4),
    ],
)
def test_fa3_split_bound(row_blocks: int, cores: int, key_blocks: int, expected: int) -> None:
    assert split_bound(row_blocks, cores, key_blocks) == expected


def test_fa3_splits_long_keys_that_do_not_fit_the_cache() -> None:
    size = 120 * 2**20
    options = {"kv_head_bytes": size, "blocks_of_head": 300}
    assert split_bound(300, 108, 1000, **options, is_masked=False) == 3
    assert split_bound(300, 108, 1000, **options) == 1


def test_fa3_splits_the_long_sequence_only() -> None:
    workload = planner_workloads()["decode_skew_128k"]
    problem = Problem.of(workload.work, workload.block_q, workload.block_kv, 36)
    # the share is 1016 key blocks * 8 heads * 1.1 / 36 = 249 of them
    assert sequence_splits(problem, 4).tolist() == [3] + [1] * 63


def test_flashinfer_fills_the_cores_with_equal_chunks() -> None:
    one = AttnWork([1], [131072], 8, 1, 128, mask_mode=3)
    assert chunk_keys(Problem.of(one, 64, 256, 36)) == 3648
    many = AttnWork([1] * 36, [131072] * 36, 8, 1, 128, mask_mode=3)
    assert chunk_keys(Problem.of(many, 64, 256, 36)) is None
    short = AttnWork([1], [100], 8, 1, 128, mask_mode=3)
    assert chunk_keys(Problem.of(short, 64, 256, 36)) is None


@given(attn_works(longest_kv=3000), st.sampled_from([1, 3, 20]), st.sampled_from([37, 64, 1000]))
@settings(max_examples=60, deadline=None)
def test_pieces_cover_every_visible_key_once(work: AttnWork, cores: int, chunk: int) -> None:
    problem = Problem.of(work, 16, 64, cores)
    low, high = problem.visible
    items = cut_into_chunks(problem, low, np.full_like(low, chunk))
    heads = problem.grid.heads
    keys = np.bincount(items.row, items.high - items.low, minlength=low.size)
    np.testing.assert_array_equal(keys, np.maximum(high - low, 0) * heads)
    # the pieces of a head follow each other
    same = (items.row[1:] == items.row[:-1]) & (items.head[1:] == items.head[:-1])
    np.testing.assert_array_equal(items.low[1:][same], items.high[:-1][same])
    order = launch_order(items, np.ones(work.batch_size, dtype=np.int64), 16)
    assert sorted(order.tolist()) == list(range(items.row.size))
    for deal in (round_robin, next_free_core):
        assert deal(items).sum() == items.cycles.sum()


@given(attn_works(longest_kv=3000), st.sampled_from([1, 3, 20]))
@settings(max_examples=60, deadline=None)
def test_no_peer_is_faster_than_its_share(work: AttnWork, cores: int) -> None:
    """Cutting never removes a block, so no makespan is below that of an even deal."""
    problem = Problem.of(work, 16, 64, cores)
    total = int(problem.grid.cost.sum()) * problem.grid.heads * CYCLES_PER_UNIT
    for peer in PEERS.values():
        assert peer(problem) * cores >= total


def test_one_core_takes_the_whole_grid() -> None:
    work = AttnWork([1, 70], [500, 700], 4, 2, 128, mask_mode=3)
    problem = Problem.of(work, 16, 64, 1)
    total = int(problem.grid.cost.sum()) * 2 * CYCLES_PER_UNIT
    assert PEERS["row_grid"](problem) == PEERS["fa3"](problem) == total


def test_planning_is_timed_for_both_planners() -> None:
    elapsed = measure(planning_cases()[0], rounds=2)
    assert set(elapsed) == {"balanced", "section_stream_k"}
    assert all(0 < t.best_ms <= t.median_ms for t in elapsed.values())


def test_the_command_writes_results_plot_and_tables(tmp_path: Path) -> None:
    results, picture = tmp_path / "planner.jsonl", tmp_path / "plot.png"
    document = tmp_path / "planner.md"
    document.write_text("a\n<!-- performance: begin -->\n<!-- performance: end -->\nb\n")
    paths = ["--output", str(results), "--picture", str(picture), "--document", str(document)]
    done = CliRunner().invoke(app, ["planner", "--rounds", "1", *paths])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    counted = [line for line in lines if line["kind"] == "makespan"]
    assert len(counted) == 9 * 3 * 6
    assert all(line["ratio"] >= 1 for line in counted)
    assert picture.read_bytes()[1:4] == b"PNG"
    text = document.read_text()
    assert text.startswith("a\n")
    assert "64 decodes of 4k" in text
    fill_document(lines, document)
    assert document.read_text() == text
