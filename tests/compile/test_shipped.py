"""What we ship against what we recorded: everything that changed, and a sample of the rest."""

import os

import pytest

from fa_triton.attention.fractals import KERNEL
from fa_triton.attention.tiles import loads_fractals
from fa_triton.compile import records
from fa_triton.compile.batch import compile_all
from fa_triton.compile.shipped import select, shipped_variants
from fa_triton.targets import TARGETS

pytestmark = pytest.mark.compile

SAMPLE = 30
WORKERS = min(2, os.cpu_count() or 1)


@pytest.fixture(scope="module")
def jobs():
    return select(shipped_variants())


def test_every_kernel_is_shipped_for_every_target(jobs):
    kernels = {(variant.kernel, name) for variant, name in jobs}
    every = {(kernel, target.name) for kernel in {k for k, _ in kernels} for target in TARGETS}
    # where fractals are loaded as they lie, nothing copies them
    copies = {(KERNEL, target.name) for target in TARGETS if loads_fractals(target.family)}
    assert copies == {(KERNEL, "A5")}
    assert kernels == every - copies


def test_records_are_current(jobs):
    old = records.stale(jobs)
    named = ", ".join(f"{variant.key} on {name}" for variant, name in old[:5])
    assert not old, f"{len(old)} records are missing or stale ({named} …): run {records.REFRESH}"
    gone = set(records.load()) - {(variant.key, name) for variant, name in jobs}
    assert not gone, f"{len(gone)} records name nothing that is shipped: run {records.REFRESH}"


def test_recorded_compiles_are_ok():
    bad = [key for key, record in records.load().items() if not record.facts["ok"]]
    assert not bad


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_changed_variants_compile_as_declared(jobs):
    old = records.stale(jobs)
    results = compile_all(records.sample(old, 2 * SAMPLE), WORKERS)
    wrong = [f"{r.variant.key} on {r.target}: {r.mismatches}" for r in results if not r.ok]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_sample_compiles_as_recorded(jobs):
    known = records.load()
    recorded = [(v, name) for v, name in jobs if (v.key, name) in known]
    wrong = []
    for result in compile_all(records.sample(recorded, SAMPLE), WORKERS):
        record = known[result.variant.key, result.target]
        found = [*result.mismatches, *records.differences(record, result.report)]
        if found:
            wrong.append(f"{result.variant.key} on {result.target}: {found}")
    assert not wrong, "\n".join(wrong)
