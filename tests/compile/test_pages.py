"""A tile per page keeps the pipeline and shares rows; fractals are relayed on A5, copied before."""

from __future__ import annotations

import re

import pytest

from fa_triton.attention.shipped import attn_variant, attn_variants
from fa_triton.attention.unfold_shipped import unfold_variant, unfold_variants
from fa_triton.compile import records
from fa_triton.compile.variant import FULL, KernelVariant, compile_variant
from fa_triton.kernel_form import parse_key

pytestmark = pytest.mark.compile

# Keys that a tile advances by on pages of these sizes, decode rows and prefill rows.
SMALLEST_STEP = {"A2": 64, "A3": 64, "A5": 16}


def paged_variants() -> list[KernelVariant]:
    return [variant for variant in attn_variants() if "-with_block_table" in variant.key]


def step(variant: KernelVariant) -> int:
    found = re.search(r"-kv_step(\d+)", variant.key)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("target", SMALLEST_STEP)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_every_page_size_has_a_form_that_is_pipelined_and_shares_rows(
    target: str, dtype: str, dim: int
) -> None:
    known = records.load()
    steps: dict[bool, set[int]] = {True: set(), False: set()}
    for variant in paged_variants():
        wanted = f"attn_forward-{dtype}-" in variant.key and f"-d{dim}-" in variant.key
        if not wanted or target not in variant.properties or variant.constants["IS_NZ"]:
            continue
        assert variant.properties[target] == FULL
        facts = known[variant.key, target].facts
        assert facts["ok"]
        assert facts["rows_shared"]
        assert facts["pipeline_depth"] > 1
        assert facts["relays"] == facts["scalar_loops"] == 0
        steps[variant.constants["BLOCK_Q"] == 16].add(step(variant))
    for is_decode in (True, False):
        assert {16, 32, 48, 64} <= steps[is_decode]
        assert min(steps[is_decode]) <= SMALLEST_STEP[target]


def test_fractals_are_relayed_as_declared_on_a5_alone() -> None:
    known = records.load()
    fractal = [v for v in attn_variants() if v.constants.get("IS_NZ")]
    assert fractal
    for variant in fractal:
        assert list(variant.properties) == ["A5"]
        properties, facts = variant.properties["A5"], known[variant.key, "A5"].facts
        assert facts["ok"]
        assert facts["relays"] == properties.relays > 0
        assert facts["rows_shared"] == properties.rows_shared
        assert facts["pipeline_depth"] > 1


def test_a_logged_fractal_form_is_of_a5_alone() -> None:
    key = f"attn_forward-bf16-group1-d128-dv128-block_q64-block_kv64-kv_step64-is_nz{TENSORS}"
    assert list(attn_variant(key).properties) == ["A5"]
    assert list(unfold_variant("unfold_fractals-i8-d48-dv16-block_s8").properties) == ["A2", "A3"]


@pytest.mark.parametrize("target", ["A2", "A3"])
def test_the_copy_of_fractals_alternates_buffers_on_vector_cores(target: str) -> None:
    """Two tiles of K and two of V, none of them laid out anew on chip."""
    known = records.load()
    for variant in unfold_variants():
        facts = known[variant.key, target].facts
        assert facts["ok"]
        assert facts["core"] == "aiv"
        assert facts["scalar_loops"] == 0
        form = parse_key(variant.key)
        sizes = dict(form.constants)
        element_bytes = 4 if form.dtype == "fp32" else 2
        key_bytes = (sizes["D"] + sizes["DV"]) * element_bytes
        assert facts["ub_bytes"] == 2 * sizes["BLOCK_S"] * key_bytes


TENSORS = "-with_seqused_kv-with_block_table-with_softmax_lse"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "rows", "keys"),
    [("A2", 16, 64), ("A2", 32, 64), ("A3", 16, 64), ("A5", 16, 16), ("A5", 64, 16)],
)
def test_small_pages_compile_pipelined_today(target: str, rows: int, keys: int) -> None:
    group, mask = (8, "has_limit") if rows == 16 else (1, "has_right")
    key = (
        f"attn_forward-bf16-group{group}-d128-dv128-block_q{rows}-block_kv{keys}-kv_step{keys}"
        f"-{mask}-has_cut_flags{TENSORS}"
    )
    result = compile_variant(attn_variant(key), target)
    assert result.ok, result.mismatches
    assert result.report.pipelined
    assert result.report.rows_shared
