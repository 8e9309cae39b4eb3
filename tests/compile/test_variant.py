import dataclasses

import pytest

from fa_triton.compile.report import CompileReport
from fa_triton.compile.shipped import select
from fa_triton.compile.variant import (
    FULL,
    VECTOR_ONLY,
    KernelVariant,
    Properties,
    check,
    compile_variant,
)

GOOD = CompileReport(
    ok=True,
    kernel="attend",
    target="A2",
    arch="Ascend910B3",
    core="mix",
    ub_bytes=1024,
    ub_limit=192 * 1024,
    l1_bytes=1024,
    l1_limit=512 * 1024,
    l0c_bytes=1024,
    l0c_limit=128 * 1024,
    dots=2,
    mmas=2,
    pipelined=True,
    pipeline_depth=4,
    rows_shared=True,
    relays=0,
    scalar_loops=0,
    retries=(),
    seconds=0.1,
    hivm_path=None,
    ir_path="",
    diagnostics=(),
)


def variant(op="flash_attn", key="key", targets=("A2", "A5"), tile="64x128"):
    return KernelVariant(
        op, "attend", tile, key, "tests.compile.small_kernels:attend", {}, {},
        dict.fromkeys(targets, FULL),
    )  # fmt: skip


def test_all_as_declared():
    assert check(GOOD, FULL) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pipelined": False}, "declared pipelined, compiled not pipelined"),
        ({"rows_shared": False}, "declared rows shared, compiled rows not shared"),
        ({"relays": 2}, "declared relays 0, compiled relays 2"),
        ({"scalar_loops": 1}, "declared scalar loops 0, compiled scalar loops 1"),
    ],
)
def test_missing_property(change, sentence):
    assert check(dataclasses.replace(GOOD, **change), FULL) == [sentence]


def test_declaration_that_is_out_of_date():
    declared = Properties(pipelined=False, rows_shared=True, reason="carried state")
    assert check(GOOD, declared) == ["declared not pipelined, compiled pipelined"]


def test_miscompile_is_a_mismatch_whatever_is_declared():
    report = dataclasses.replace(GOOD, ok=False, mmas=1, diagnostics=("miscompiled: …",))
    assert check(report, FULL) == ["miscompiled: …"]


def test_failed_compile():
    report = dataclasses.replace(GOOD, ok=False, core="", diagnostics=("ub overflow",))
    assert check(report, VECTOR_ONLY) == ["does not compile: ub overflow"]


@pytest.mark.parametrize(
    "missing", [{"pipelined": False}, {"rows_shared": False}, {"relays": 1}, {"scalar_loops": 1}]
)
def test_missing_property_needs_a_reason(missing):
    with pytest.raises(ValueError, match="`reason` must say why a property is missing"):
        Properties(**{"pipelined": True, "rows_shared": True} | missing)


def test_select():
    variants = [variant(key="a"), variant("chunk_kda", "b"), variant(key="c", targets=("A2",))]
    pairs = [(v.key, name) for v, name in select(variants)]
    assert pairs == [("a", "A2"), ("a", "A5"), ("b", "A2"), ("b", "A5"), ("c", "A2")]
    pairs = [(v.key, name) for v, name in select(variants, ops=["flash_attn"], targets=["A5"])]
    assert pairs == [("a", "A5")]
    assert [v.key for v, _ in select(variants, keys=["b"], targets=["A2"])] == ["b"]


def test_device_name_is_held_to_its_family():
    ((chosen, name),) = select([variant()], targets=["Ascend910B1"])
    assert name == "Ascend910B1"
    assert chosen.properties[name] is FULL


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"ops": ["attn"]}, "`op` must be one of chunk_kda, flash_attn, got 'attn'"),
        ({"keys": ["x"]}, "`variant` must be one of a, b, or a key that a launch logged, got 'x'"),
        ({"targets": ["A9"]}, "`target` must be one of A2, A3, A5"),
    ],
)
def test_unknown_names_list_the_known_ones(names, message):
    with pytest.raises(ValueError, match=message):
        select([variant(key="a"), variant("chunk_kda", "b")], **names)


def test_long_lists_are_shortened():
    variants = [variant(key=f"attn-{i}") for i in range(100)]
    with pytest.raises(ValueError, match=r"attn-7.* … \(100 in all; `fa-triton compile --list`"):
        select(variants, keys=["attn-7x"])


def test_target_that_is_not_shipped():
    with pytest.raises(ValueError, match="`target` must be among A2, A5 for key, got 'A3'"):
        compile_variant(variant(), "A3")
