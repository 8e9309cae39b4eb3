"""How long the first call of a process takes, with an empty and with a filled kernel cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass

from perf.shapes import DTYPES, WORKLOADS

CACHE_VARIABLE = "FA_TRITON_CACHE_DIR"

# Runs in a fresh process: {0} is the workload, {1} the dtype.
_CHILD = """
import json, sys, time
start = time.perf_counter()
import torch
import triton
import fa_triton
imports = time.perf_counter() - start
from perf.candidates import ours
from perf.shapes import DTYPES, WORKLOADS, make_tensors
workload = WORKLOADS["{0}"]
call = ours(workload, make_tensors(workload, DTYPES["{1}"]))
times = []
for _ in range(2):
    start = time.perf_counter()
    call()
    times.append(time.perf_counter() - start)
sys.stdout.write(json.dumps([imports, *times]))
"""


@dataclass(frozen=True)
class FirstCall:
    """Elapsed seconds in one process.

    Attributes:
        imports_s: Import of torch, triton and fa_triton.
        first_s: First call of flash_attn: plan, code generation or cache look-up, run.
        second_s: Second call with the same arguments.
    """

    imports_s: float
    first_s: float
    second_s: float


def _one_process(workload: str, dtype: str, cache: str) -> FirstCall:
    environment = dict(os.environ, **{CACHE_VARIABLE: cache})
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(workload, dtype)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the first call of {workload} {dtype} failed:\n{done.stderr}")
    return FirstCall(*json.loads(done.stdout.splitlines()[-1]))


def measure(workload: str, dtype: str) -> dict[str, dict[str, float]]:
    """Time a process with an empty cache, then the best of three with the cache it left.

    Args:
        workload: Name of a workload.
        dtype: ``bf16``, ``fp16`` or ``fp32``.

    Returns:
        ``cold`` and ``warm``, each with the seconds of :class:`FirstCall`.
    """
    if workload not in WORKLOADS or dtype not in DTYPES:
        raise ValueError(f"`workload` and `dtype` must be known names, got {workload!r}, {dtype!r}")
    with tempfile.TemporaryDirectory(prefix="fa_triton_cache_") as cache:
        cold = _one_process(workload, dtype, cache)
        warm = min(
            (_one_process(workload, dtype, cache) for _ in range(3)), key=lambda c: c.first_s
        )
    return {"cold": asdict(cold), "warm": asdict(warm)}
