import importlib.util
import json
import os
import re
import stat
from pathlib import Path

import pytest

from fa_triton.compile import CompileReport, cache, compile_for, toolchain
from fa_triton.compile.source import source_hash
from fa_triton.targets import target as find_target
from tests.compile.small_kernels import (
    ATTEND_SIGNATURE,
    COPY_ROWS_SIGNATURE,
    attend,
    attend_constants,
    broken,
    copy_rows,
    scale_rows,
)

pytestmark = pytest.mark.compile

PLAIN = {"ROWS": 16, "D": 64, "FORM": "plain"}
SCALE_SIGNATURE = {"x": "*fp32:16", "out": "*fp32:16", "factor": "fp32", "stride": "i32:16"}
SCALE_CONSTANTS = {"N": 64, "optional": None}


def test_vector_kernel():
    report = compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2")
    assert report.ok
    assert report.core == "aiv"
    assert (report.dots, report.mmas, report.l0c_bytes) == (0, 0, 0)
    assert 16 * 64 * 2 <= report.ub_bytes <= report.ub_limit


def test_files_of_a_compile():
    report = compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2")
    folder = Path(report.ir_path)
    assert report.hivm_path == str(folder / "kernel.hivm.mlir")
    for name in ("kernel.ttir.mlir", "kernel.linalg.mlir", "kernel.hivm.mlir", "compiler.log"):
        assert (folder / name).read_text()
    assert not list(folder.parent.glob(".partial-*"))


def test_second_call_comes_from_disk(fresh_cache, monkeypatch):
    first = compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2")

    def refuse(*_args):
        raise AssertionError("compiled again")

    monkeypatch.setattr("fa_triton.compile.ascend_compiler.run", refuse)
    assert compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2") == first
    with pytest.raises(AssertionError, match="compiled again"):
        compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN | {"D": 128}, "A2")
    assert not list((fresh_cache / "compile" / "entries").glob(".partial-*"))


def test_damaged_entry_is_made_again(fresh_cache):
    first = compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2")
    (Path(first.ir_path) / "report.json").write_text("{")
    again = compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2")
    assert (again.ok, again.ub_bytes) == (True, first.ub_bytes)


def test_cache_is_pruned(fresh_cache):
    for d in (16, 32, 64):
        compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN | {"D": d}, "A2")
    assert cache.prune(max_entries=1) == 2
    assert len(list((fresh_cache / "compile" / "entries").iterdir())) == 1


def test_specialisation_reaches_the_ir():
    def ttir(stride):
        signature = SCALE_SIGNATURE | {"stride": stride}
        report = compile_for(scale_rows, signature, SCALE_CONSTANTS, "A2")
        assert report.ok
        return (Path(report.ir_path) / "kernel.ttir.mlir").read_text()

    # The stride is argument 3; one that equals 1 stays in the list and is used nowhere.
    assert "%arg3: i32 {tt.divisibility = 16" in ttir("i32:16")
    assert "%arg3: i32 loc" in ttir("i32")
    assert "%arg0: !tt.ptr<f32> {tt.divisibility = 16" in ttir("i32")
    assert "arith.muli" in ttir("i32")
    assert "arith.muli" not in ttir("i32:1")


def test_launch_options_reach_the_compiler():
    tile = attend_constants("good")
    report = compile_for(attend, ATTEND_SIGNATURE, tile, "A2", {"set_workspace_multibuffer": 2})
    assert report.pipeline_depth == 2
    report = compile_for(attend, ATTEND_SIGNATURE, tile, "A2", {"multibuffer": False})
    assert not report.pipelined
    # num_warps means nothing to an NPU and is taken like at a launch.
    report = compile_for(attend, ATTEND_SIGNATURE, tile, "A2", {"num_warps": 8})
    assert report.pipeline_depth == 4


def test_kernel_that_triton_rejects():
    report = compile_for(broken, {"x": "*fp32"}, {"N": 64}, "A2")
    assert not report.ok
    assert report.core == ""
    assert report.diagnostics[0].startswith("triton: ")


@pytest.mark.parametrize("name", ["Ascend910B1", "Ascend950DT_9571"])
def test_device_by_name(name):
    report = compile_for(attend, ATTEND_SIGNATURE, attend_constants("good"), name)
    assert report.ok
    assert (report.target, report.arch) == (name, name)
    text = Path(report.hivm_path).read_text()
    cores = re.search(r'"CUBE_CORE_COUNT", (\d+)', text)
    assert int(cores[1]) == find_target(name).cube_cores


@pytest.mark.parametrize("name", ["A2", "A3", "A5"])
def test_limits_are_those_of_the_compiler(name):
    report = compile_for(attend, ATTEND_SIGNATURE, attend_constants("good"), name)
    device = find_target(name)
    limits = (report.ub_limit, report.l1_limit, report.l0c_limit)
    assert limits == (device.ub_bytes, device.l1_bytes, device.l0c_bytes)
    cores = re.search(r'"VECTOR_CORE_COUNT", (\d+)', Path(report.hivm_path).read_text())
    assert int(cores[1]) == device.vector_cores


def test_report_survives_json():
    report = compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2")
    assert CompileReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    assert "ok" in str(report)


@pytest.mark.parametrize(
    ("signature", "constants", "options", "message"),
    [
        (COPY_ROWS_SIGNATURE | {"y": "i32"}, PLAIN, {}, "must name arguments .* got y"),
        ({"x": "*bf16"}, PLAIN, {}, "must hold every argument .* none for out, group"),
        (COPY_ROWS_SIGNATURE | {"group": "i32:8"}, PLAIN, {}, "triton type, .* got 'i32:8'"),
        (COPY_ROWS_SIGNATURE, PLAIN, {"warp": 1}, "`options` must be among .* got warp"),
    ],
)
def test_wrong_use(signature, constants, options, message):
    with pytest.raises(ValueError, match=message):
        compile_for(copy_rows, signature, constants, "A2", options)


def test_option_of_another_target():
    with pytest.raises(ValueError, match="for A5, got sync_solver"):
        compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A5", {"sync_solver": True})


def test_missing_package_is_named(monkeypatch):
    toolchain.require.cache_clear()
    monkeypatch.setattr(toolchain, "installed_version", lambda name: None)
    with pytest.raises(RuntimeError, match=r"`ascendnpu-ir` must be ==1.2.0, got none"):
        compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2")
    monkeypatch.setattr(toolchain, "installed_version", lambda name: "9.9")
    with pytest.raises(RuntimeError, match=r"`triton-ascend` must be ==3.2.0, got 9.9"):
        compile_for(copy_rows, COPY_ROWS_SIGNATURE, PLAIN, "A2")
    toolchain.require.cache_clear()


KERNEL_FILE = """
import triton
import triton.language as tl

FILL = tl.constexpr({fill})


@triton.jit
def helper(x):
    return x {operator} FILL


@triton.jit
def kernel(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), helper(tl.load(x + tl.arange(0, N))))
"""


def test_source_hash_covers_helpers_and_globals(tmp_path):
    def hash_of(name, fill, operator, before=""):
        path = tmp_path / f"{name}.py"
        path.write_text(before + KERNEL_FILE.format(fill=fill, operator=operator))
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return source_hash(module.kernel)

    base = hash_of("base", 1.0, "+")
    assert hash_of("same", 1.0, "+") == base
    assert hash_of("other_line", 1.0, "+", before="# moved down\n") == base
    assert hash_of("other_helper", 1.0, "*") != base
    assert hash_of("other_global", 2.0, "+") != base


def test_compiler_without_run_bit(tmp_path, monkeypatch):
    binary = tmp_path / "bin" / "bishengir-compile"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o644)

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    toolchain._compiler.cache_clear()
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: Spec)
    path = toolchain._compiler("bishengir-compile")
    toolchain._compiler.cache_clear()
    assert os.access(path, os.X_OK)
    assert path.stat().st_mode & stat.S_IXUSR
