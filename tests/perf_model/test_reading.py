"""HIVM text becomes functions, blocks, operations and maps."""

from __future__ import annotations

import pytest

from perf.model.affine import parse_map
from perf.model.core import UnknownOperationError
from perf.model.cube_calls import MisplacedOperandError
from perf.model.interpreter import Launch, execute
from perf.model.memref import read_type
from perf.model.mlir import parse
from tests.perf_model.excerpts import module


@pytest.mark.parametrize(
    ("text", "operands", "results"),
    [
        ("()[s0] -> (s0 + 16)", [3], [19]),
        ("(d0, d1) -> ((d0 - d1) ceildiv 256, 4)", [1000, 100], [4, 4]),
        ("()[s0, s1] -> ((s0 + (-s1 + 1023) floordiv 1024) mod 2)", [4, 5000], [0]),
        ("(d0)[s0] -> (d0 * -2 + s0)", [5, 1], [-9]),
    ],
)
def test_affine_maps(text, operands, results):
    assert parse_map(text)(operands) == results


@pytest.mark.parametrize("text", ["d0 -> d0", "(d0) -> (d0 ** 2)", "(d0) -> (f(d0))"])
def test_what_is_no_affine_map_is_refused(text):
    with pytest.raises(ValueError, match="affine"):
        parse_map(text)


def test_memref_types():
    tile = read_type("memref<4x96xf32, strided<[128, 1], offset: ?>, #hivm.address_space<ub>>")
    assert (tile.shape, tile.dtype, tile.space, tile.strides) == ((4, 96), "f32", "ub", (128, 1))
    assert (tile.bytes, tile.rows, tile.columns) == (1536, 4, 96)
    assert read_type("memref<?xi1>").bytes_of(9) == 2
    with pytest.raises(ValueError, match="memref"):
        read_type("vector<4xf32>")


def test_functions_and_regions():
    product = module("mixed").functions["product_mix_aiv"]
    assert product.arguments == [f"%arg{n}" for n in range(8)]
    (block,) = product.blocks
    loop = next(o for o in block.operations if o.name == "scf.while")
    assert loop.results == ["%2#0", "%2#1"]
    before, after = loop.regions
    assert [o.name for o in before[0].operations] == ["arith.cmpi", "scf.condition"]
    assert after[0].arguments == ["%arg8", "%arg9"]

    condition = next(
        o
        for outer in module("vector").functions["exponentials"].blocks[0].operations
        for region in outer.regions
        for o in region[0].operations
        if o.name == "scf.if"
    )
    assert len(condition.regions) == 2

    labels = [b.label for b in module("registers").functions["add_outlined_vf_0"].blocks]
    assert labels == ["^entry", "^bb1", "^bb2", "^bb3"]


def test_an_open_region_is_refused():
    with pytest.raises(ValueError, match="close every region"):
        parse("func.func @f() {\nscf.for %a = %b to %c step %d {\n}\n")


def changed(name, old, new):
    from tests.perf_model.excerpts import DATA

    text = (DATA / f"{name}.mlir").read_text()
    assert old in text
    return parse(text.replace(old, new))


def test_what_has_no_rule_is_refused_not_guessed():
    launch = Launch(names=("x", "tiles", "n"), scalars={}, contents={"tiles": [1]})
    for old, new in (("vexp_2d_float", "vtanh_2d_float"), ("hivm.hir.pipe_barrier", "hivm.hir.x")):
        with pytest.raises(UnknownOperationError, match="no rule"):
            execute(changed("vector", old, new), launch)


def test_a_product_of_more_than_its_tiles_hold_is_refused():
    # 256 of an inner dimension of which L1 has 128
    wrong = changed("mixed", "%c128 = arith.constant 128", "%c128 = arith.constant 256")
    with pytest.raises(MisplacedOperandError, match="hold \\[16, 128, 32\\]"):
        execute(wrong, Launch(names=("k", "n"), scalars={}, contents={}))


def test_integers_that_control_the_flow_must_be_given():
    launch = Launch(names=("x", "tiles", "n"), scalars={}, contents={})
    with pytest.raises(ValueError, match="integers of tiles"):
        execute(module("vector"), launch)


def test_arguments_must_be_those_of_the_kernel():
    with pytest.raises(ValueError, match="3 run-time arguments"):
        execute(module("vector"), Launch(names=("x",), scalars={}, contents={}))
