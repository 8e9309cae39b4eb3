"""`import fa_triton` is light and the imports inside the package go one way."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DEVICE_PACKAGES = {"triton", "torch_npu", "vllm", "llvmlite", "ascendnpuir", "transformers"}

# What a module may not import, at top level or inside a function.
HOST_ONLY = ["problem.py", "tile_config.py", "validation/*.py", "planner/*.py", "targets.py"]
LAUNCH_SIDE = {"fa_triton.launch", "fa_triton.native", "fa_triton.kernels"}


def run_fresh(code: str) -> str:
    """Run code in a new interpreter, started outside the repository."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_modules(path: Path, package: str) -> set[str]:
    """Return absolute names of all modules that a file imports, wherever it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(parents + ([node.module] if node.module else []))
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def module_imports(folder: str, package: str) -> dict[Path, set[str]]:
    """Return the imports of every file below a folder of the repository."""
    base = ROOT / folder
    found = {}
    for path in sorted(base.rglob("*.py")):
        relative = path.relative_to(base).parent.parts
        found[path.relative_to(ROOT)] = imported_modules(path, ".".join((package, *relative)))
    return found


def starts_with(names: set[str], roots: set[str]) -> set[str]:
    """Return those names that are one of the roots or lie below one."""
    return {n for n in names if any(n == r or n.startswith(f"{r}.") for r in roots)}


def test_import_loads_no_device_library():
    loaded = json.loads(
        run_fresh("import json, sys, fa_triton; print(json.dumps(sorted(sys.modules)))")
    )
    assert not starts_with(set(loaded), DEVICE_PACKAGES)


def test_import_is_fast():
    code = (
        "import torch, time\n"
        "start = time.perf_counter()\n"
        "import fa_triton\n"
        "print(time.perf_counter() - start)"
    )
    seconds = min(float(run_fresh(code)) for _ in range(3))
    assert seconds < 0.2


def test_public_names_resolve_lazily():
    code = (
        "import sys, fa_triton\n"
        "before = 'fa_triton.flash_attention' in sys.modules\n"
        "names = [getattr(fa_triton, n) for n in fa_triton.__all__]\n"
        "print(before, len(names), 'triton' in sys.modules)"
    )
    assert run_fresh(code).split() == ["False", "12", "False"]


def test_unknown_attribute_names_itself():
    import fa_triton

    with pytest.raises(AttributeError, match="no attribute 'flash_attention_v2'"):
        fa_triton.flash_attention_v2  # noqa: B018


def test_kernels_import_triton_and_shared_parts_only():
    allowed = {"__future__", "math", "triton"}
    for path, names in module_imports("kernels", "fa_triton.kernels").items():
        if path.name == "__init__.py":
            continue
        own = {
            n
            for n in starts_with(names, {"fa_triton"})
            if n == "fa_triton.kernels" or n.startswith("fa_triton.kernels._")
        }
        wrong = names - own - starts_with(names, allowed)
        assert not wrong, f"{path} imports {sorted(wrong)}"


@pytest.mark.parametrize("pattern", HOST_ONLY)
def test_host_side_imports_no_device_code(pattern):
    for path, names in module_imports("fa_triton", "fa_triton").items():
        if path.match(f"fa_triton/{pattern}"):
            wrong = starts_with(names, DEVICE_PACKAGES | LAUNCH_SIDE)
            assert not wrong, f"{path} imports {sorted(wrong)}"


def test_optional_packages_stay_in_their_folder():
    homes = {
        "vllm": ("fa_triton/vllm/",),
        "transformers": ("fa_triton/integrations/", "fa_triton/demo/", "fa_triton/cli/demo.py"),
        "llvmlite": ("fa_triton/native/",),
    }
    for path, names in module_imports("fa_triton", "fa_triton").items():
        for package, folders in homes.items():
            if starts_with(names, {package}):
                assert str(path).startswith(folders), f"{path} imports {package}"


def test_missing_triton_is_explained():
    code = (
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "import torch, fa_triton\n"
        "x = torch.zeros(1, 4, 2, 64)\n"
        "try:\n    fa_triton.flash_attn(x, x, x)\n"
        "except RuntimeError as error:\n    print(error)"
    )
    text = run_fresh(code)
    assert "`triton` must be installed" in text
    assert "fa_triton[cpu]" in text


def test_missing_triton_on_a_newer_python_names_the_versions():
    from fa_triton.kernels import _missing_triton

    assert "3.10 and 3.11 only, this is 3.13" in _missing_triton((3, 13))
