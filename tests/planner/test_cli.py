"""``fa-triton plan``: what it prints, its JSON, its errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fa_triton.cli.main import app
from fa_triton.cli.plan import parse_lengths
from fa_triton.targets import A5


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["plan", *args])


def run_json(*args: str) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_prints_ranges_split_rows_and_makespan() -> None:
    result = run("--q-lens", "1*3", "--kv-lens", "8192*3", "--heads-kv", "4")
    assert result.exit_code == 0
    for text in ("20 cube and 40 vector cores", "Split row blocks", "makespan / ideal"):
        assert text in " ".join(result.output.split())


def test_json_holds_the_whole_plan() -> None:
    plan = run_json("--q-lens", "1*3", "--kv-lens", "8192*3", "--heads-kv", "4")
    assert plan["planner"] == "balanced"
    assert plan["combines"]
    assert [core["start"] for core in plan["cores"][1:]] == [
        core["end"] for core in plan["cores"][:-1]
    ]
    assert sum(row["slots"] for row in plan["split_rows"]) == plan["slots"]
    parts = plan["attention_units"] + plan["barrier_units"] + plan["combine_units"]
    assert plan["makespan_units"] == pytest.approx(parts, abs=0.01)


def test_no_split_says_so() -> None:
    result = run("--batch", "2", "--seqlen-q", "1", "--seqlen-kv", "100")
    assert "no row block is split" in result.output


def test_lines_are_limited() -> None:
    shape = ("--batch", "1", "--seqlen-q", "4096", "--seqlen-kv", "4096")
    cut_short = run(*shape, "--planner", "section_stream_k", "--lines", "5").output
    assert "and 15 more (--lines 0 prints all)" in cut_short
    assert "more (" not in run(*shape, "--lines", "0").output


def test_core_counts_and_blocks_are_options() -> None:
    shape = ("--batch", "1", "--seqlen-q", "128", "--seqlen-kv", "1024")
    target = run_json(*shape, "--device-target", "A5")
    assert (target["num_aic"], target["num_aiv"]) == (A5.cube_cores, A5.vector_cores)
    cores = run_json(*shape, "--num-aic", "3", "--block-q", "16", "--block-kv", "64")
    assert (cores["num_aic"], cores["num_aiv"]) == (3, 6)
    assert (cores["block_q"], cores["block_kv"]) == (16, 64)


def test_section_stream_k() -> None:
    plan = run_json(
        "--batch", "2", "--seqlen-q", "65536", "--seqlen-kv", "65536",
        "--planner", "section_stream_k",
    )  # fmt: skip
    assert plan["planner"] == "section_stream_k"
    assert plan["sections"] > 1


def test_batch_invariant() -> None:
    shape = ("--batch", "1", "--seqlen-q", "1", "--seqlen-kv", "8192", "--batch-invariant")
    assert "balanced, batch-invariant, programs in turn: 20 cube" in " ".join(
        run(*shape).output.split()
    )
    plan = run_json(*shape)
    assert plan["batch_invariant"]
    assert (plan["num_aic"], len(plan["cores"])) == (20, 8 * 4)


def test_lengths_may_be_bounds() -> None:
    plan = run_json("--batch", "1", "--seqlen-q", "1", "--seqlen-kv", "131072", "--from-bounds")
    assert plan["in_turn"]
    assert not plan["batch_invariant"]
    assert plan["num_aic"] == 20
    assert len(plan["cores"]) > 20 * 16


@pytest.mark.parametrize(
    ("text", "lengths"), [("5", [5]), ("1, 2", [1, 2]), ("1*3,7", [1, 1, 1, 7])]
)
def test_lengths(text: str, lengths: list[int]) -> None:
    assert parse_lengths(text, "--q-lens") == lengths


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "lengths must come from"),
        (["--q-lens", "1", "--batch", "1"], "got both"),
        (["--q-lens", "1"], "got no `--kv-lens`"),
        (["--batch", "1", "--seqlen-q", "1"], "got no `--seqlen-kv`"),
        (["--q-lens", "1,1", "--kv-lens", "1"], "as many sequences, got 2 and 1"),
        (["--q-lens", "1,x", "--kv-lens", "1"], "`--q-lens` must be lengths"),
        (["--q-lens", "1*0", "--kv-lens", "1"], "must name one length at least"),
        (["--q-lens", "1", "--kv-lens", "1", "--heads-q", "3"], "multiple of `num_heads_kv`"),
        (["--q-lens", "1", "--kv-lens", "1", "--win-left", "3"], "must be -1 in mask mode 3"),
        (["--q-lens", "1", "--kv-lens", "1", "--layout", "SBH"], "`layout_q`"),
        (["--q-lens", "1", "--kv-lens", "1", "--planner", "best"], "`planner` must be one of"),
        (["--q-lens", "1", "--kv-lens", "1", "--device-target", "A9"], "`target` must be"),
    ],
)
def test_errors_name_the_option(args: list[str], message: str) -> None:
    result = run(*args)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
