"""Each fault the compilers keep quiet about, shown by a small kernel and seen by the check."""

import pytest

from fa_triton.compile import compile_for, mix_mode
from tests.compile.small_kernels import (
    ATTEND_SIGNATURE,
    COPY_ROWS_SIGNATURE,
    TWO_PRODUCTS_SIGNATURE,
    attend,
    attend_constants,
    copy_rows,
    two_products,
)

pytestmark = pytest.mark.compile

TARGETS = ["A2", "A3", "A5"]


def compile_attend(form, target, **tile):
    return compile_for(attend, ATTEND_SIGNATURE, attend_constants(form, **tile), target)


@pytest.mark.parametrize("target", TARGETS)
def test_good_kernel_has_everything(target):
    report = compile_attend("good", target)
    assert report.ok
    assert report.diagnostics == ()
    assert (report.core, report.dots, report.mmas) == ("mix", 2, 2)
    assert report.pipelined
    assert report.pipeline_depth == (2 if target == "A5" else 4)
    assert report.rows_shared
    assert (report.relays, report.scalar_loops, report.retries) == (0, 0, ())
    assert 0 < report.ub_bytes <= report.ub_limit
    assert 0 < report.l1_bytes <= report.l1_limit
    assert 0 < report.l0c_bytes <= report.l0c_limit


def test_a5_without_mix_mode(fresh_cache, monkeypatch):
    mix_mode.uninstall()
    monkeypatch.setattr(mix_mode, "install", lambda: False)
    lost = compile_attend("good", "A5")
    # The compile succeeds and nothing is said.
    assert lost.ok
    assert not lost.pipelined
    assert not lost.rows_shared
    monkeypatch.undo()
    kept = compile_attend("good", "A5")
    assert kept.pipelined
    assert kept.rows_shared


def test_a2_does_not_care_about_mix_mode(fresh_cache):
    mix_mode.uninstall()
    without = compile_attend("good", "A2")
    assert mix_mode.install()
    with_it = compile_attend("good", "A2")
    assert without.pipelined
    assert without.rows_shared
    assert (without.ub_bytes, without.pipeline_depth) == (with_it.ub_bytes, with_it.pipeline_depth)


def test_a5_drops_a_bare_accumulator():
    constants = {"K": 256, "ADD_LATER": False}
    report = compile_for(two_products, TWO_PRODUCTS_SIGNATURE, constants, "A5")
    assert (report.dots, report.mmas) == (2, 1)
    assert not report.ok
    assert "miscompiled" in report.diagnostics[0]


@pytest.mark.parametrize(
    ("target", "add_later"), [("A2", False), ("A3", False), ("A5", True), ("A2", True)]
)
def test_accumulator_is_kept(target, add_later):
    constants = {"K": 256, "ADD_LATER": add_later}
    report = compile_for(two_products, TWO_PRODUCTS_SIGNATURE, constants, target)
    assert report.ok
    assert (report.dots, report.mmas) == (2, 2)


@pytest.mark.parametrize("target", ["A2", "A3"])
def test_while_as_key_loop(target):
    report = compile_attend("while_loop", target)
    assert report.ok
    assert not report.pipelined
    assert not report.rows_shared


@pytest.mark.parametrize("target", ["A2", "A3"])
def test_default_maximum_with_a_mask(target):
    assert compile_attend("position_mask", target).pipelined
    report = compile_attend("default_maximum", target)
    assert report.ok
    assert not report.pipelined
    assert report.pipeline_depth == 1


@pytest.mark.parametrize(
    ("target", "tile"),
    [
        ("A2", {"block_q": 256, "block_kv": 256, "d": 128}),
        # The A5 compiler retries several times before it gives up.
        pytest.param("A5", {"block_q": 128, "block_kv": 256, "d": 128}, marks=pytest.mark.slow),
    ],
)
def test_over_large_tile(target, tile):
    report = compile_attend("good", target, **tile)
    assert not report.ok
    assert report.core == ""
    assert "overflow, requires" in report.diagnostics[0]


def test_tile_that_fits_after_a_silent_retry():
    report = compile_attend("good", "A2", block_q=16, block_kv=512, d=256)
    assert report.mmas == 2
    assert not report.ok
    assert "enable-auto-multi-buffer to false" in report.retries[0]
    assert report.diagnostics[0].startswith("silent retry")


@pytest.mark.parametrize("target", ["A2", "A3"])
def test_operand_that_is_gathered_from_fractals(target):
    report = compile_attend("fractal_values", target)
    assert (report.dots, report.mmas) == (2, 2)
    assert not report.ok
    assert "cannot hold it for the product m, k, n = 64, 128, 64" in report.diagnostics[0]


def test_a5_takes_fractals_through_a_vector_core():
    report = compile_attend("fractal_values", "A5")
    assert report.ok
    assert report.relays == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["divided_rows", "divided_columns"])
def test_divided_address(target, form):
    constants = {"ROWS": 16, "D": 64, "FORM": form}
    report = compile_for(copy_rows, COPY_ROWS_SIGNATURE, constants, target)
    assert report.ok
    assert report.scalar_loops == 1
    plain = compile_for(copy_rows, COPY_ROWS_SIGNATURE, constants | {"FORM": "plain"}, target)
    assert plain.scalar_loops == 0


def test_divided_address_of_an_operand():
    report = compile_attend("divided_rows", "A2")
    assert report.scalar_loops == 1
    assert report.relays == 1
    assert not report.rows_shared


def test_scalar_atomic_in_a_mixed_kernel():
    report = compile_attend("atomic", "A5")
    assert report.ok
    assert not report.rows_shared
    assert any("hivm-bind-sub-block" in line for line in report.diagnostics)
    assert compile_attend("atomic", "A2").rows_shared


@pytest.mark.parametrize("target", TARGETS)
def test_values_relayed_through_the_unified_buffer(target):
    report = compile_attend("cast_values", target)
    assert report.ok
    assert report.relays == 1


def test_transposed_pointers():
    relayed = compile_attend("transposed_pointers", "A5")
    # No message of the compiler says so.
    assert relayed.diagnostics == ()
    assert relayed.relays == 1
    assert not relayed.rows_shared
    too_large = compile_attend("transposed_pointers", "A2")
    assert "ub overflow" in too_large.diagnostics[0]
