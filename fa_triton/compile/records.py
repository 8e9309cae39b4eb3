"""Committed compile results, so that a change of what a kernel becomes shows in review.

``autotune_configs/records/<op>.json`` holds, per variant and target, the facts of the last compile
and a hash of all that went into it: kernel source with its helpers, signature, constants,
options, device and toolchain versions. A record whose hash differs is stale: the kernel must be
compiled again before its numbers can be believed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_triton.compile.batch import Job
from fa_triton.compile.check import describe_inputs
from fa_triton.compile.options import launch_options
from fa_triton.compile.report import CompileReport
from fa_triton.compile.variant import KernelVariant, VariantResult
from fa_triton.targets import target as find_target

REFRESH = "fa-triton compile --all --update-records"

_FACTS = (
    "ok",
    "core",
    "ub_bytes",
    "l1_bytes",
    "l0c_bytes",
    "dots",
    "mmas",
    "pipeline_depth",
    "rows_shared",
    "relays",
    "scalar_loops",
)


@dataclass(frozen=True)
class Record:
    """The last compile of one variant for one target."""

    inputs: str
    facts: dict[str, Any]


def records_directory() -> Path:
    """Return the directory of the committed records."""
    configs = importlib.import_module("fa_triton.autotune_configs")
    return Path(next(iter(configs.__path__))) / "records"


def inputs_hash(variant: KernelVariant, target: str) -> str:
    """Hash all that the compile of a variant depends on."""
    device = find_target(target)
    options = launch_options(device, variant.options)
    inputs = describe_inputs(
        variant.resolve(), variant.signature, variant.constants, device, options
    )
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def facts(report: CompileReport) -> dict[str, Any]:
    """Pick what a record keeps of a report: nothing that differs from run to run."""
    return {name: getattr(report, name) for name in _FACTS}


def load(directory: Path | None = None) -> dict[tuple[str, str], Record]:
    """Read all records.

    Returns:
        Records by variant key and target name; empty where there are none yet.
    """
    found = {}
    for path in sorted((directory or records_directory()).glob("*.json")):
        for key, by_target in json.loads(path.read_text()).items():
            for name, entry in by_target.items():
                found[key, name] = Record(entry["inputs"], entry["facts"])
    return found


def stale(jobs: Iterable[Job], directory: Path | None = None) -> list[Job]:
    """Pick the compiles whose record is missing or was made from something else."""
    known = load(directory)
    old = []
    for variant, name in jobs:
        record = known.get((variant.key, name))
        if record is None or record.inputs != inputs_hash(variant, name):
            old.append((variant, name))
    return old


def sample(jobs: Sequence[Job], count: int, directory: Path | None = None) -> list[Job]:
    """Draw compiles to repeat; the draw changes with the records and is the same until then."""
    digest = hashlib.sha256()
    for path in sorted((directory or records_directory()).glob("*.json")):
        digest.update(path.read_bytes())
    return random.Random(digest.hexdigest()).sample(list(jobs), min(count, len(jobs)))


def differences(record: Record, report: CompileReport) -> list[str]:
    """Say where a compile differs from its record."""
    now = facts(report)
    return [
        f"{name}: recorded {record.facts.get(name)}, now {value}"
        for name, value in now.items()
        if record.facts.get(name) != value
    ]


def update(
    results: Iterable[VariantResult], complete: bool, directory: Path | None = None
) -> list[Path]:
    """Write records.

    Args:
        results: Fresh compiles. Those for targets that are not named A2, A3 or A5 are left out.
        complete: The results cover all that is shipped: drop records of everything else.
        directory: Where to; the committed records by default.

    Returns:
        Files written.
    """
    directory = directory or records_directory()
    directory.mkdir(parents=True, exist_ok=True)
    by_op: dict[str, dict[str, dict[str, Any]]] = {}
    if not complete:
        by_op = {path.stem: json.loads(path.read_text()) for path in directory.glob("*.json")}
    for result in results:
        device = find_target(result.target)
        if device.name != device.family:
            continue
        variants = by_op.setdefault(result.variant.op, {})
        variants.setdefault(result.variant.key, {})[result.target] = {
            "inputs": inputs_hash(result.variant, result.target),
            "facts": facts(result.report),
        }
    written = []
    for op, variants in by_op.items():
        path = directory / f"{op}.json"
        path.write_text(_format(variants))
        written.append(path)
    if complete:
        for path in set(directory.glob("*.json")) - set(written):
            path.unlink()
    return written


def _format(variants: dict[str, dict[str, Any]]) -> str:
    """Lay records out with one line per variant and target, for short diffs."""
    blocks = []
    for key in sorted(variants):
        lines = [
            f"    {json.dumps(name)}: {json.dumps(variants[key][name])}"
            for name in sorted(variants[key])
        ]
        blocks.append(f"  {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"
