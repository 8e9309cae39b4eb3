"""What the cores of a program do, counted: exact for given arguments, free of any constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from perf.model.interpreter import Streams
from perf.model.stream import (
    Barrier,
    CoreSync,
    Event,
    Flag,
    Multiply,
    Registers,
    Scalar,
    Transfer,
    Vector,
)


@dataclass(frozen=True)
class Counts:
    """Sums over the cores of one program.

    Attributes:
        path_bytes: Bytes by path, ``gm_to_l1``.
        caller_read: Bytes read from the caller's tensors.
        caller_written: Bytes written to them.
        workspace_read: Bytes read from the workspace that cube and vector cores share.
        workspace_written: Bytes written to it.
        transfers: Transfers from or to global memory.
        macs: Multiply-adds that the kernel asks the cube for; rows that a mask hides are left out.
        cube_steps: Steps of 16 x 16 results and 32 bytes of the inner dimension.
        vector_repeats: Steps of 256 bytes by kind of instruction (A2, A3).
        vector_reductions: Folds of one register beside them.
        vector_calls: Vector functions.
        registers: Instructions on registers (A5).
        flag_waits: Waits between pipes.
        core_waits: Waits for another core.
        barriers: Barriers.
        scalar_operations: Scalar instructions, calls and loads apart.
        scalar_loads: Scalar loads from global memory.
    """

    path_bytes: dict[str, int] = field(default_factory=dict)
    caller_read: int = 0
    caller_written: int = 0
    workspace_read: int = 0
    workspace_written: int = 0
    transfers: int = 0
    macs: int = 0
    cube_steps: int = 0
    vector_repeats: dict[str, int] = field(default_factory=dict)
    vector_reductions: int = 0
    vector_calls: int = 0
    registers: int = 0
    flag_waits: int = 0
    core_waits: int = 0
    barriers: int = 0
    scalar_operations: int = 0
    scalar_loads: int = 0

    @property
    def repeats(self) -> int:
        """Steps of 256 bytes of all kinds."""
        return sum(self.vector_repeats.values())


def count(streams: Streams) -> Counts:
    """Count one program."""
    totals: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    repeats: Counter[str] = Counter()
    for stream in [*([] if streams.cube is None else [streams.cube]), *streams.vectors]:
        _add(stream, totals, paths, repeats)
    return Counts(path_bytes=dict(paths), vector_repeats=dict(repeats), **totals)


def _add(
    stream: Iterable[Event], totals: Counter[str], paths: Counter[str], repeats: Counter[str]
) -> None:
    for event in stream:
        if isinstance(event, Scalar):
            totals["scalar_operations"] += event.operations
            totals["scalar_loads"] += event.loads
        elif isinstance(event, Transfer):
            paths[event.path] += event.bytes
            if event.memory != "chip":
                way = "written" if event.is_write else "read"
                totals[f"{event.memory}_{way}"] += event.bytes
                totals["transfers"] += 1
        elif isinstance(event, Vector):
            repeats[event.kind] += event.repeats
            totals["vector_reductions"] += event.reductions
            totals["vector_calls"] += 1
        elif isinstance(event, Registers):
            totals["registers"] += (
                event.loads + event.stores + event.simple + event.special + event.reductions
            )
            totals["vector_calls"] += 1
        elif isinstance(event, Multiply):
            totals["macs"] += event.macs
            totals["cube_steps"] += event.steps
        elif isinstance(event, Flag):
            totals["flag_waits"] += not event.is_set
        elif isinstance(event, CoreSync):
            totals["core_waits"] += not event.is_set
        elif isinstance(event, Barrier):
            totals["barriers"] += 1
