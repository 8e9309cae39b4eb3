import dataclasses
import json

import pytest

from fa_triton.compile import records
from fa_triton.compile.batch import compile_all
from fa_triton.compile.shipped import select
from tests.compile.small_variants import attend_variant, copy_variant

pytestmark = pytest.mark.compile

VARIANTS = [attend_variant(), copy_variant(), copy_variant(32)]


@pytest.fixture(scope="module")
def results():
    return compile_all(select(VARIANTS), 1)


def test_results_come_in_order_from_parallel_processes(results):
    seen = []
    parallel = compile_all(select(VARIANTS), 2, seen.append)
    assert [(r.variant.key, r.target) for r in parallel] == [
        (v.key, name) for v, name in select(VARIANTS)
    ]
    assert all(r.ok for r in parallel)
    assert len(seen) == len(parallel) == len(results)
    assert [records.facts(r.report) for r in parallel] == [records.facts(r.report) for r in results]


def test_error_in_a_worker_is_raised():
    wrong = dataclasses.replace(copy_variant(), signature={"x": "*bf16"})
    with pytest.raises(ValueError, match="must hold every argument"):
        compile_all(select([wrong, copy_variant()]), 2)


def test_number_of_jobs():
    with pytest.raises(ValueError, match="`jobs` must be at least 1, got 0"):
        compile_all(select(VARIANTS), 0)


def test_fresh_records_are_current(results, tmp_path):
    written = records.update(results, complete=True, directory=tmp_path)
    assert sorted(path.name for path in written) == ["attend_op.json", "copy_op.json"]
    assert records.stale(select(VARIANTS), tmp_path) == []
    known = records.load(tmp_path)
    assert set(known) == {(v.key, name) for v, name in select(VARIANTS)}
    for result in results:
        record = known[result.variant.key, result.target]
        assert records.differences(record, result.report) == []


def test_change_makes_a_record_stale(results, tmp_path):
    records.update(results, complete=True, directory=tmp_path)
    wider = dataclasses.replace(
        VARIANTS[1], constants={**VARIANTS[1].constants, "D": 128}, tile="16x128"
    )
    other_options = dataclasses.replace(VARIANTS[2], options={"multibuffer": False})
    new = attend_variant(tile="32x128")
    jobs = select([VARIANTS[0], wider, other_options, new])
    old = [(v.key, name) for v, name in records.stale(jobs, tmp_path)]
    assert old == [("copy-64", "A2"), ("copy-32", "A2"), (new.key, "A2"), (new.key, "A5")]


def test_partial_update_keeps_other_records(results, tmp_path):
    records.update(results, complete=True, directory=tmp_path)
    before = records.load(tmp_path)
    records.update(results[-1:], complete=False, directory=tmp_path)
    assert records.load(tmp_path) == before
    records.update(results[-1:], complete=True, directory=tmp_path)
    assert set(records.load(tmp_path)) == {("copy-32", "A2")}
    assert [path.name for path in tmp_path.iterdir()] == ["copy_op.json"]


def test_differences_are_named(results, tmp_path):
    records.update(results, complete=True, directory=tmp_path)
    record = records.load(tmp_path)[results[0].variant.key, results[0].target]
    worse = dataclasses.replace(results[0].report, rows_shared=False, ub_bytes=7)
    assert records.differences(record, worse) == [
        f"ub_bytes: recorded {results[0].report.ub_bytes}, now 7",
        "rows_shared: recorded True, now False",
    ]


def test_records_are_plain_json_with_one_line_per_compile(results, tmp_path):
    records.update(results, complete=True, directory=tmp_path)
    text = (tmp_path / "attend_op.json").read_text()
    assert list(json.loads(text)) == ["attend-good-64x128"]
    assert text.count("\n") == 2 + 2 + 2
    # Times and paths differ from run to run and stay out.
    assert "seconds" not in text
    assert "path" not in text


def test_device_names_are_not_recorded(tmp_path):
    named = compile_all(select([copy_variant()], targets=["Ascend910B1"]), 1)
    assert records.update(named, complete=True, directory=tmp_path) == []


def test_sample_is_repeatable(results, tmp_path):
    jobs = select([copy_variant(d) for d in range(16, 16 * 40, 16)])
    records.update(results, complete=True, directory=tmp_path)
    first = records.sample(jobs, 5, tmp_path)
    assert len(first) == 5
    assert records.sample(jobs, 5, tmp_path) == first
    assert len(records.sample(jobs, 500, tmp_path)) == len(jobs)
    records.update(results[:1], complete=True, directory=tmp_path)
    assert records.sample(jobs, 5, tmp_path) != first
