"""The phases of chunked linear attention: what a chunk of one value head costs a core.

The cost of a chunk is the difference of two lengths of a sequence with one head. One matrix core
with its two vector cores runs everything; kernels without a matrix product are two programs on it,
one per vector core.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch

from fa_triton import chunk_kda
from fa_triton.config_files import CONFIG_DIR_VARIABLE, shipped_entries
from fa_triton.delta_rule.tiles import OP, ChunkTileEntry
from fa_triton.targets import target as find_target
from fa_triton.variants import variant_of_key
from perf.kda_workloads import WORKLOADS, make_inputs
from perf.model.program import compiled, marginal, model
from perf.model.recording import RecordedLaunch, recorded

TARGET = "A2"
CHUNK_SIZES = (64, 128)
# chunks of the two sequences that are compared
CHUNKS = (8, 16)
_INVERSE = "kda_prepare_inverse"

Line = dict[str, Any]


@dataclass(frozen=True)
class PhaseCase:
    """One kernel under one gate.

    Attributes:
        kernel: Its name.
        chunk_size: C.
        workload: Gate, as in ``perf.kda_workloads``.
        steep: Whether blocks are steep, where a kernel looks; None where none does.
    """

    kernel: str
    chunk_size: int
    workload: str
    steep: bool | None = None


def phase_lines() -> Iterator[Line]:
    """Model every phase with an unbounded gate, those that differ with a bounded one, and one more.

    The last is a tile that is not shipped: all rows of a chunk of 64 inverted at once.
    """
    for chunk_size in CHUNK_SIZES:
        seen: set[str] = set()
        for workload in ("unbounded", "bounded"):
            calls = [_record(workload, chunk_size, chunks) for chunks in CHUNKS]
            for fewer, more in zip(*calls, strict=True):
                if fewer.key in seen:
                    continue
                seen.add(fewer.key)
                looks = fewer.arguments.get("is_steep") is not None
                is_reader = looks and fewer.kernel != "kda_prepare_spans"
                for steep in (False, True) if is_reader else (None,):
                    case = PhaseCase(fewer.kernel, chunk_size, workload, steep)
                    yield _line(case, fewer, more)
    rows = CHUNK_SIZES[0]
    with _tiles(inverse_r=rows):
        calls = [_record("unbounded", rows, chunks) for chunks in CHUNKS]
    fewer, more = (next(c for c in call if c.kernel == _INVERSE) for call in calls)
    yield _line(PhaseCase(_INVERSE, rows, "unbounded"), fewer, more, is_chosen=False)


@contextmanager
def _tiles(**changes: int) -> Iterator[None]:
    """Let calls take other tiles than those that are shipped."""
    entries = [
        msgspec.structs.replace(entry, config=msgspec.structs.replace(entry.config, **changes))
        for entry in shipped_entries(OP, TARGET, ChunkTileEntry)
    ]
    with tempfile.TemporaryDirectory(prefix="fa_triton_model_") as folder:
        file = Path(folder) / TARGET / f"{OP}.json"
        file.parent.mkdir()
        file.write_bytes(msgspec.json.encode(entries))
        with mock.patch.dict(os.environ, {CONFIG_DIR_VARIABLE: folder}):
            yield


def _record(workload: str, chunk_size: int, chunks: int) -> list[RecordedLaunch]:
    shape = replace(
        WORKLOADS[workload], num_tokens=chunk_size * chunks, num_heads=1, chunk_size=chunk_size
    )
    inputs = make_inputs(shape, torch.bfloat16)
    with recorded(find_target(TARGET)) as launches:
        chunk_kda(*inputs.rows, **inputs.options, use_qk_l2norm_in_kernel=True)
    return list(launches)


def _line(
    case: PhaseCase, fewer: RecordedLaunch, more: RecordedLaunch, is_chosen: bool = True
) -> Line:
    variant = variant_of_key(fewer.key)
    known = compiled(variant, TARGET)
    programs = []
    for launch in (fewer, more):
        contents = {}
        if case.steep is not None:
            contents["is_steep"] = torch.full_like(
                launch.arguments["is_steep"], int(case.steep), dtype=torch.int32
            )
        programs.append(model(known, TARGET, launch.launch(known.names, **contents)))
    cost = marginal(programs[1], programs[0], CHUNKS[1] - CHUNKS[0])
    return {
        "kind": "kda",
        "target": TARGET,
        "kernel": case.kernel,
        "chunk_size": case.chunk_size,
        "gate": case.workload,
        "steep": case.steep,
        "tile": variant.tile,
        "is_chosen": is_chosen,
        "key": variant.key,
        "unit": "chunk and value head, K = V = 128",
        "counted": cost.counted,
        "predicted": {
            source: {name: round(cycles, 1) for name, cycles in by_set.items()}
            for source, by_set in cost.predicted.items()
        },
        "busy": cost.busy,
        "source": known.source,
    }
