import json
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from fa_triton.cli import doctor
from fa_triton.cli.main import app

NAMES = [
    "npu",
    "cuda",
    "native",
    "interpreter",
    "reference",
    "compile A2",
    "compile A3",
    "compile A5",
]


def test_table_names_everything():
    done = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    for name in [*NAMES, "triton-ascend", "ascendnpu-ir", "llvmlite", "torch"]:
        assert name in done.stdout


def test_json():
    done = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(done.stdout)
    assert [ability["name"] for ability in found["abilities"]] == NAMES
    assert found["packages"]["torch"]
    # What is missing comes with advice, what is there without.
    assert all(bool(a["advice"]) != a["available"] for a in found["abilities"])


@pytest.mark.compile
def test_full_installation_can_do_all_that_needs_no_device():
    able = {ability.name for ability in doctor.find_abilities() if ability.available}
    assert able >= {"native", "interpreter", "reference", "compile A2", "compile A3", "compile A5"}


@pytest.mark.slow
def test_bare_installation():
    """With torch and numpy alone the doctor says what to install, and imports no triton."""
    script = """
        import importlib.abc, importlib.metadata, importlib.util, json, sys

        HIDDEN = {"triton", "ascendnpuir", "llvmlite", "pybind11", "torch_npu", "transformers"}

        class Hide(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in HIDDEN:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Hide())
        version = importlib.metadata.version

        def visible(name):
            if name.partition("-")[0] in ("triton", "ascendnpu", "llvmlite", "pybind11", "gguf"):
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        importlib.metadata.version = visible
        from fa_triton.cli.main import main

        sys.argv = ["fa-triton", "doctor", "--json"]
        try:
            main()
        finally:
            assert "triton" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    abilities = {a["name"]: a for a in json.loads(done.stdout)["abilities"]}
    assert [name for name, a in abilities.items() if a["available"]] == ["reference"]
    assert "`ascendnpu-ir` must be ==1.2.0, got none" in abilities["native"]["detail"]
    assert "`triton-ascend` must be ==3.2.0, got none" in abilities["compile A5"]["detail"]
    assert abilities["native"]["advice"] == "pip install 'fa_triton[cpu]'"


def test_python_without_wheels_is_named(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 13, 1))
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.13.1")
    assert "use CPython 3.10 or 3.11" in doctor._wheel_advice()
    assert "this is 3.13.1" in doctor._wheel_advice()
