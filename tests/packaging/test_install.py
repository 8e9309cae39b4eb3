"""Wheel, editable install and metadata carry everything that the package needs."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Folder of the repository -> package it installs as.
HOMES = {
    "fa_triton": "fa_triton",
    "kernels": "fa_triton.kernels",
    "autotune_configs": "fa_triton.autotune_configs",
}


def packages_on_disk() -> set[str]:
    """Return the packages that the source folders hold."""
    found = set()
    for folder, package in HOMES.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            below = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((package, *below)))
    return found


def installed_files() -> set[str]:
    """Return the paths inside a wheel that the source folders ask for."""
    found = set()
    for folder, package in HOMES.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".json", ".jsonl"} or path.name == "py.typed":
                relative = path.relative_to(ROOT / folder)
                found.add(f"{package.replace('.', '/')}/{relative}")
    return found


def python(*args: str, cwd: str | Path = "/") -> str:
    """Run this interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of what git would ship, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    python(*command, "--wheel-dir", str(folder), str(source))
    (built,) = folder.glob("*.whl")
    return built


def test_every_package_is_listed():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_on_disk()


def test_version_is_the_same_everywhere():
    from fa_triton import __version__

    assert PROJECT["project"]["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_compiler_packages_are_pinned():
    pins = {p.partition(";")[0].strip() for p in PROJECT["project"]["optional-dependencies"]["cpu"]}
    assert {"triton-ascend==3.2.0", "ascendnpu-ir==1.2.0", "llvmlite>=0.47,<0.51"} <= pins


def test_no_base_dependency_brings_a_kernel_compiler():
    names = " ".join(PROJECT["project"]["dependencies"])
    assert "triton" not in names


@pytest.mark.slow
def test_wheel_holds_every_module_and_config(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert not installed_files() - inside
    assert not any(name.startswith(("kernels/", "tests/", "perf/")) for name in inside)


@pytest.mark.slow
def test_wheel_works_away_from_the_repository(wheel, tmp_path):
    target = tmp_path / "site"
    install = ["-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target)]
    python(*install, str(wheel))
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r})\n"
        "import importlib, json, pkgutil\n"
        "import fa_triton, fa_triton.kernels, fa_triton.autotune_configs\n"
        "folders = [fa_triton, fa_triton.kernels, fa_triton.autotune_configs]\n"
        "names = [m.name for m in pkgutil.iter_modules(fa_triton.kernels.__path__)]\n"
        "print(json.dumps([[f.__file__ for f in folders], names]))"
    )
    files, kernels = json.loads(python("-c", code))
    assert all(file.startswith(str(target)) for file in files)
    assert set(kernels) == {p.stem for p in (ROOT / "kernels").glob("*.py")} - {"__init__"}


@pytest.mark.slow
def test_editable_install_reads_the_top_level_folders(tmp_path):
    venv = tmp_path / "venv"
    python("-m", "venv", "--without-pip", "--system-site-packages", str(venv))
    interpreter = str(venv / "bin" / "python")
    site = next((venv / "lib").glob("python*/site-packages"))
    install = ["-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation"]
    # `--system-site-packages` shows the base interpreter's packages, not those of a parent venv
    tools = [path for path in sys.path if path.endswith("site-packages")]
    (site / "tools.pth").write_text("\n".join(tools))
    subprocess.run(
        [interpreter, *install, "--force-reinstall", "--editable", str(ROOT)],
        capture_output=True,
        cwd="/",
        check=True,
    )
    code = "import fa_triton.kernels as k, fa_triton as f; print(f.__file__); print(k.__file__)"
    done = subprocess.run(
        [interpreter, "-c", code], capture_output=True, text=True, cwd="/", check=True
    )
    package, kernels = done.stdout.split()
    assert Path(package) == ROOT / "fa_triton" / "__init__.py"
    assert Path(kernels) == ROOT / "kernels" / "__init__.py"
