"""Triton kernels, one ``@triton.jit`` function per file; installed as ``fa_triton.kernels``."""

import importlib.util
import sys


def _missing_triton(python: tuple[int, int]) -> str:
    """Say how to get triton on a version of CPython."""
    if python in ((3, 10), (3, 11)):
        way = "pip install 'fa_triton[cpu]' (or npu, cuda)"
    else:
        way = (
            "triton-ascend has wheels for CPython 3.10 and 3.11 only, this is "
            f"{python[0]}.{python[1]}; pip install 'fa_triton[cuda]' serves NVIDIA GPUs"
        )
    return (
        f"`triton` must be installed to run kernels, got none: {way}. "
        "On the CPU FA_TRITON_CPU=reference computes without kernels."
    )


if importlib.util.find_spec("triton") is None:
    raise RuntimeError(_missing_triton(sys.version_info[:2]))
