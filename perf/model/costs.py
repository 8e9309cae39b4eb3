"""Cycles of single instructions, from the constants of ``costs.json``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from fa_triton.targets import Target
from perf.model.stream import Multiply, Registers, Transfer, Vector, Work

FILE = Path(__file__).with_name("costs.json")
SETS = ("base", "nominal", "pess")
# Where the caller's tensors come from: the memory outside, shared by all cores, or the last cache.
Source = Literal["memory", "cache"]
# what a queue of independent vector instructions still pays for each
_QUEUED_HEAD = 4.0


class Latencies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constants that are least known, cycles; one set of them.

    Attributes:
        scalar_operation: A scalar instruction.
        scalar_call: Call of a library function.
        issue: Issue of one instruction to a pipe.
        global_load: A scalar load from global memory.
        dma_start: Start of a transfer from or to global memory; writes take 0.6 of it.
        dma_starts_overlap: Whether a queued transfer starts while the one before it runs.
        fix_start: Start of a transfer out of L0C.
        core_to_core: From a flag set on one core until another goes on.
        flag: The same between pipes of one core.
        l0c_to_gm: Bytes per cycle.
    """

    scalar_operation: float
    scalar_call: float
    issue: float
    global_load: float
    dma_start: float
    dma_starts_overlap: bool
    fix_start: float
    core_to_core: float
    flag: float
    l0c_to_gm: float


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clock, memory bandwidth of a device and bytes per cycle of each path of a core."""

    clock_ghz: float
    memory_bytes_per_s: float
    paths: dict[str, float]


class VectorParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cycles of a fold of one register, of a spread value, and of starting to spread."""

    reduction: float
    broadcast: float
    broadcast_start: float


class RegisterUnits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Instructions per cycle and cycles per instruction of an Ascend 950 vector core."""

    per_cycle: float
    loads_per_cycle: float
    stores_per_cycle: float
    special: float
    reduction: float
    start: float
    tail: float


class Cube(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cycles before and after the steps of a pass."""

    start: float
    tail: float


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of ``costs.json``; ``sources`` says where each comes from."""

    sources: dict[str, str]
    sets: dict[str, Latencies]
    families: dict[str, Family]
    vector: dict[str, tuple[float, float, float]]
    vector_parts: VectorParts
    registers: RegisterUnits
    cube: Cube
    l1_start: float


@functools.cache
def constants() -> Constants:
    """Read ``costs.json``.

    Raises:
        msgspec.ValidationError: The file has another form.
    """
    return msgspec.json.decode(FILE.read_bytes(), type=Constants)


@dataclass(frozen=True)
class Cost:
    """Cycles of one instruction.

    Attributes:
        busy: Until its pipe takes the next.
        latency: From there until its result is there.
    """

    busy: float
    latency: float


@dataclass(frozen=True)
class CostModel:
    """Costs on one device under one set of constants.

    Attributes:
        latencies: The set.
        family: Paths of the device.
        shared: The constants that all sets have in common.
        share_cube: Bytes per cycle from memory outside for a cube core when all cores read.
        share_vector: The same for a vector core.
    """

    latencies: Latencies
    family: Family
    shared: Constants
    share_cube: float
    share_vector: float

    @staticmethod
    def of(target: Target, name: str, source: Source) -> CostModel:
        """Take a set by name.

        Args:
            target: The device.
            name: ``base``, ``nominal`` or ``pess``.
            source: Where the caller's tensors come from.
        """
        known = constants()
        family = known.families[target.family]
        per_cycle = family.memory_bytes_per_s / (family.clock_ghz * 1e9)
        from_cache = source == "cache"
        infinite = float("inf")
        return CostModel(
            known.sets[name],
            family,
            known,
            infinite if from_cache else per_cycle / target.cube_cores,
            infinite if from_cache else per_cycle / target.vector_cores,
        )

    def cost(self, work: Work) -> Cost:
        """Cycles of an instruction."""
        if isinstance(work, Transfer):
            return self._transfer(work)
        if isinstance(work, Vector):
            return self._vector(work)
        if isinstance(work, Registers):
            return self._registers(work)
        if isinstance(work, Multiply):
            steps = work.steps * work.cycles_per_step
            return Cost(self.shared.cube.start + steps, self.shared.cube.tail)
        raise TypeError(f"`work` must be an instruction of a pipe, got {type(work).__name__}")

    def _transfer(self, work: Transfer) -> Cost:
        known = self.latencies
        if work.path in ("l1_to_l0a", "l1_to_l0b"):
            return Cost(self.shared.l1_start + work.bytes / self.family.paths[work.path], 0.0)
        if work.path == "l1_fill":
            return Cost(work.bytes / self.family.paths[work.path], 0.0)
        rate = known.l0c_to_gm if work.path == "l0c_to_gm" else self.family.paths[work.path]
        if work.memory == "caller" and not work.is_write:
            share = self.share_cube if work.path == "gm_to_l1" else self.share_vector
            rate = min(rate, share)
        moving = work.bytes / rate
        start = known.fix_start
        if work.pipe != "FIX":
            start = known.dma_start * (0.6 if work.is_write else 1.0)
            if work.path == "ub_to_l1":
                start = known.flag
        if known.dma_starts_overlap:
            return Cost(moving, start)
        return Cost(start + moving, 0.0)

    def _vector(self, work: Vector) -> Cost:
        head, slope, tail = self.shared.vector[work.kind]
        parts = self.shared.vector_parts
        body = slope * work.repeats + parts.reduction * work.reductions
        if work.broadcasts:
            body += parts.broadcast_start + parts.broadcast * work.broadcasts
        hidden = max(head - _QUEUED_HEAD, 0.0) * work.instructions
        return Cost((head * work.instructions - hidden) + body, hidden + tail)

    def _registers(self, work: Registers) -> Cost:
        units = self.shared.registers
        slots = work.simple + units.special * work.special + units.reduction * work.reductions
        body = max(
            slots / units.per_cycle,
            work.loads / units.loads_per_cycle,
            work.stores / units.stores_per_cycle,
        )
        return Cost(units.start + body, units.tail)
