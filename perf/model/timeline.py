"""Replay of instruction streams on the in-order pipes of a cube core and its vector cores.

The scalar unit issues in order and does not wait for what it issues; a pipe executes in order. All
times follow from sums and maxima of costs, so that no cost can grow and the result shrink.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from perf.model.costs import CostModel
from perf.model.interpreter import Streams
from perf.model.stream import Barrier, CoreSync, Event, Flag, Pipe, Scalar

CUBE = "cube"


class DeadlockError(RuntimeError):
    """Cores wait for flags that none will set: streams that do not belong together."""


@dataclass(frozen=True)
class CoreTime:
    """What became of one core.

    Attributes:
        name: ``cube``, ``vector0``, ``vector1``.
        cycles: When it is done.
        busy: Cycles of each pipe at work.
    """

    name: str
    cycles: float
    busy: dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """Predicted cycles of a program, and of each of its cores."""

    cycles: float
    cores: tuple[CoreTime, ...]


def predict(streams: Streams, costs: CostModel) -> Prediction:
    """Replay one program.

    Args:
        streams: Of its cores.
        costs: Of single instructions.

    Raises:
        DeadlockError: The streams wait for each other.
        ValueError: A pipe waits for a flag that its core has not set.
    """
    cores = [] if streams.cube is None else [_Core(CUBE, streams.cube, costs)]
    cores += [_Core(f"vector{n}", s, costs) for n, s in enumerate(streams.vectors)]
    flags = _CoreFlags([core.name for core in cores])
    left = list(cores)
    while left:
        left = [core for core in left if not core.advance(flags)]
        if left and not any(core.moved for core in cores):
            waiting = ", ".join(f"{c.name} at {c.at} of {len(c.stream)}" for c in left)
            raise DeadlockError(f"every core waits for another: {waiting}")
        for core in cores:
            core.moved = False
    times = tuple(CoreTime(core.name, core.end(), dict(core.busy)) for core in cores)
    return Prediction(max(time.cycles for time in times), times)


class _CoreFlags:
    """When each core set each flag, and how often each has waited for it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._times: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._taken: Counter[tuple[str, int]] = Counter()

    def set(self, core: str, flag: int, time: float) -> None:
        self._times[core, flag].append(time)

    def take(self, core: str, flag: int) -> float | None:
        """Time of the next flag for a core: a cube core needs it of both vector cores."""
        setters = [CUBE] if core != CUBE else [name for name in self._names if name != CUBE]
        number = self._taken[core, flag]
        times = [self._times[setter, flag] for setter in setters]
        if any(len(found) <= number for found in times):
            return None
        self._taken[core, flag] += 1
        return max(found[number] for found in times)


class _Core:
    """One core: its scalar time, and when each pipe is free and done."""

    def __init__(self, name: str, stream: Sequence[Event], costs: CostModel) -> None:
        self.name = name
        self.stream = stream
        self.at = 0
        self.moved = False
        self.busy: dict[str, float] = defaultdict(float)
        self._costs = costs
        self._time = 0.0
        self._free: dict[str, float] = defaultdict(float)
        self._done: dict[str, float] = defaultdict(float)
        self._flags: dict[tuple[Pipe, Pipe, str], deque[float]] = defaultdict(deque)

    def advance(self, flags: _CoreFlags) -> bool:
        """Go on until the end or a flag that is not set; return whether it is the end."""
        start = self.at
        while self.at < len(self.stream) and self._step(self.stream[self.at], flags):
            self.at += 1
        self.moved = self.moved or self.at > start
        return self.at == len(self.stream)

    def end(self) -> float:
        """When scalar unit and all pipes are done."""
        return max([self._time, *self._done.values(), *self._free.values()])

    def _step(self, event: Event, flags: _CoreFlags) -> bool:
        """Execute one event; False if it must wait for another core."""
        if isinstance(event, Scalar):
            self._scalar(event)
            return True
        if isinstance(event, CoreSync) and not event.is_set:
            time = flags.take(self.name, event.flag)
            if time is None:
                return False
            self._hold(event.target, time + self._costs.latencies.core_to_core)
            return True
        self._time += self._costs.latencies.issue
        if isinstance(event, CoreSync):
            flags.set(self.name, event.flag, self._finished(event.source))
        elif isinstance(event, Flag):
            self._flag(event)
        elif isinstance(event, Barrier):
            if event.pipe == "ALL":
                self._time = self.end()
            else:
                self._free[event.pipe] = max(self._free[event.pipe], self._done[event.pipe])
        else:
            cost = self._costs.cost(event)
            start = max(self._free[event.pipe], self._time)
            self._free[event.pipe] = start + cost.busy
            self._done[event.pipe] = max(self._done[event.pipe], start + cost.busy + cost.latency)
            self.busy[event.pipe] += cost.busy
        return True

    def _scalar(self, event: Scalar) -> None:
        known = self._costs.latencies
        cycles = event.operations * known.scalar_operation
        cycles += event.calls * known.scalar_call + event.loads * known.global_load
        self._time += cycles
        self.busy["S"] += cycles

    def _flag(self, event: Flag) -> None:
        queue = self._flags[event.source, event.target, event.event]
        if event.is_set:
            queue.append(self._finished(event.source))
            return
        if not queue:
            raise ValueError(f"`streams` must set a flag before it is waited for, got {event}")
        self._hold(event.target, queue.popleft() + self._costs.latencies.flag)

    def _finished(self, pipe: Pipe) -> float:
        """When all that a pipe has been given so far is done."""
        if pipe == "S":
            return self._time
        return max(self._time, self._done[pipe], self._free[pipe])

    def _hold(self, pipe: Pipe, until: float) -> None:
        """Keep a pipe, or the scalar unit, from going on before a time."""
        if pipe == "S":
            self._time = max(self._time, until)
        else:
            self._free[pipe] = max(self._free[pipe], until)
