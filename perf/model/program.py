"""One program of a launch, counted and predicted, and what one more unit of work costs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from fa_triton.compile.source import source_hash
from fa_triton.compile.variant import KernelVariant, compile_variant
from fa_triton.targets import target as find_target
from perf.model.costs import SETS, CostModel, Source
from perf.model.counts import Counts, count
from perf.model.interpreter import Launch, execute
from perf.model.mlir import Module, parse
from perf.model.timeline import Prediction, predict

SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True)
class Compiled:
    """A compiled form.

    Attributes:
        module: Its HIVM.
        names: Its run-time arguments in order.
        source: Hash of the kernel's source.
    """

    module: Module
    names: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Program:
    """What program 0 of a launch does (counted) and takes (predicted).

    Attributes:
        counts: Sums over its cores.
        predictions: By source of the caller's tensors and set of constants.
    """

    counts: Counts
    predictions: Mapping[tuple[Source, str], Prediction]


@dataclass(frozen=True)
class Marginal:
    """What one unit of work adds, in a launch long enough that it repeats.

    Attributes:
        counted: Counts per unit; bytes by path and repeats by kind below their names.
        predicted: Cycles per unit by source of the caller's tensors, then by set.
        busy: Share of the nominal cycles from memory that each pipe of each core is at work.
    """

    counted: dict[str, Any]
    predicted: dict[str, dict[str, float]]
    busy: dict[str, dict[str, float]]


_forms: dict[tuple[str, str], Compiled] = {}


def compiled(variant: KernelVariant, target: str) -> Compiled:
    """Compile a form, or take what was compiled before.

    Raises:
        RuntimeError: It does not compile as it declares.
    """
    key = (variant.key, target)
    if key not in _forms:
        result = compile_variant(variant, target)
        path = result.report.hivm_path
        if not result.ok or path is None:
            reasons = "; ".join(result.mismatches or result.report.diagnostics)
            raise RuntimeError(f"{variant.key} for {target}: {reasons}")
        _forms[key] = Compiled(
            parse(Path(path).read_text()),
            tuple(variant.signature),
            source_hash(variant.resolve()),
        )
    return _forms[key]


def model(form: Compiled, target: str, launch: Launch) -> Program:
    """Model program 0 of a launch."""
    streams = execute(form.module, launch)
    return Program(
        count(streams),
        {
            (source, name): predict(streams, _costs(target, name, source))
            for source in SOURCES
            for name in SETS
        },
    )


@functools.cache
def _costs(target: str, name: str, source: Source) -> CostModel:
    return CostModel.of(find_target(target), name, source)


def marginal(more: Program, fewer: Program, units: float) -> Marginal:
    """Divide the difference of two programs by the units of work between them."""
    predicted = {
        source: {
            name: (more.predictions[source, name].cycles - fewer.predictions[source, name].cycles)
            / units
            for name in SETS
        }
        for source in SOURCES
    }
    whole = more.predictions["memory", "nominal"]
    return Marginal(
        counted=_difference(asdict(more.counts), asdict(fewer.counts), units),
        predicted=predicted,
        busy={
            core.name: {pipe: round(time / whole.cycles, 3) for pipe, time in core.busy.items()}
            for core in whole.cores
        },
    )


def _difference(more: dict[str, Any], fewer: dict[str, Any], units: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in more.items():
        if isinstance(value, dict):
            found[name] = _difference(value, {n: fewer[name].get(n, 0) for n in value}, units)
        elif value != fewer[name]:
            found[name] = (value - fewer[name]) / units
    return found
