import json

import pytest
from typer.testing import CliRunner

from fa_triton.cli.main import app
from fa_triton.compile import records, shipped
from fa_triton.compile.variant import Properties
from tests.compile.small_variants import attend_variant, copy_variant

pytestmark = pytest.mark.compile

GOOD = [attend_variant(), copy_variant()]


@pytest.fixture
def run(monkeypatch):
    def invoke(variants, *arguments):
        monkeypatch.setattr(shipped, "shipped_variants", lambda: variants)
        return CliRunner().invoke(app, ["compile", *arguments])

    return invoke


def test_table(run):
    done = run(GOOD, "--jobs", "1")
    assert done.exit_code == 0, done.output
    assert "3 of 3 compile as declared" in done.stdout
    assert "no matrix product" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[1:2] == ["attend"]]
    assert [row[2:5] for row in rows] == [["64x128", "A2", "1/1"], ["64x128", "A5", "1/1"]]


def test_json_is_alone_on_stdout(run):
    done = run(GOOD, "attend_op", "--json", "--jobs", "2")
    assert done.exit_code == 0, done.output
    reports = json.loads(done.stdout)
    assert [(r["op"], r["kernel"], r["tile"], r["target"], r["ok"]) for r in reports] == [
        ("attend_op", "attend", "64x128", "A2", True),
        ("attend_op", "attend", "64x128", "A5", True),
    ]
    assert reports[0]["pipeline_depth"] == 4


def test_one_variant_on_one_target(run):
    done = run(GOOD, "--variant", "copy-64", "--target", "Ascend910B1", "--json")
    (report,) = json.loads(done.stdout)
    assert (report["key"], report["target"], report["ok"]) == ("copy-64", "Ascend910B1", True)


def test_failed_check(run):
    wrong = attend_variant("while_loop", targets=("A2",))
    done = run([wrong], "--jobs", "1")
    assert done.exit_code == 1
    assert "declared pipelined, compiled not pipelined" in done.stdout
    assert f"--variant {wrong.key}" in done.stdout
    assert "0 of 1 compile as declared" in done.stdout
    done = run([wrong], "--json", "--jobs", "1")
    assert done.exit_code == 1
    (report,) = json.loads(done.stdout)
    assert not report["ok"]
    assert len(report["mismatches"]) == 2


def test_declared_fault_passes(run):
    declared = Properties(pipelined=False, rows_shared=False, reason="a while loop, to show it")
    done = run([attend_variant("while_loop", properties=declared, targets=("A2",))], "-j", "1")
    assert done.exit_code == 0
    assert "a while loop, to show it" in done.stdout


def test_kernel_that_does_not_compile(run):
    done = run([attend_variant("transposed_pointers", targets=("A2",))], "--jobs", "1")
    assert done.exit_code == 1
    assert "ub overflow" in done.stdout


def test_list(run):
    done = run(GOOD, "--list")
    assert done.stdout.split() == ["attend-good-64x128", "copy-64"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "`op` must be one of attend_op, copy_op, got 'nothing'"),
        (
            ["--variant", "x"],
            "`variant` must be one of attend-good-64x128, copy-64, or a key that a launch "
            "logged, got 'x'",
        ),
        (["--target", "A9"], "`target` must be one of A2, A3, A5"),
        (["copy_op", "--target", "A5"], "`--target` must be one the chosen variants"),
        (["copy_op", "--all"], "`--all` must stand alone"),
    ],
)
def test_wrong_names(run, arguments, message):
    done = run(GOOD, *arguments)
    assert done.exit_code == 1
    assert message in str(done.exception)


def test_update_records(run, monkeypatch, tmp_path):
    monkeypatch.setattr(records, "records_directory", lambda: tmp_path)
    done = run(GOOD, "--all", "--update-records", "--json", "--jobs", "1")
    assert done.exit_code == 0
    json.loads(done.stdout)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attend_op.json", "copy_op.json"]
    assert records.stale(shipped.select(GOOD)) == []
