"""Predictions as tables of the documents; every one names the constant sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perf.model.costs import SETS

Line = dict[str, Any]

# document, markers by name of the table
DOCUMENTS = {
    "docs/performance_model.md": ("decode", "vector form"),
    "docs/kda_phases.md": ("kda",),
}
_CUBE_FORM = "cube"
_THOUSAND = 1000
# multiply-adds of 16 bits in a step of the cube
_STEP_MACS = 16**3


def markers(name: str) -> tuple[str, str]:
    """Comments that a table stands between."""
    return f"<!-- model {name}: begin -->", f"<!-- model {name}: end -->"


def table(name: str, lines: Sequence[Line]) -> str:
    """Render a table by its name.

    Args:
        name: One of those in ``DOCUMENTS``.
        lines: All results.
    """
    kind = "kda" if name == "kda" else "decode"
    own = [line for line in lines if line["kind"] == kind]
    if name == "decode":
        return _decode([line for line in own if line["group"] > 1])
    if name == "vector form":
        return _vector_form([line for line in own if line["group"] == 1])
    return _kda(own)


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _number(value: float) -> str:
    """Three digits, whole numbers from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _interval(by_set: dict[str, float], scale: float = 1.0) -> str:
    """Base, nominal, pess."""
    return ", ".join(_number(by_set[name] * scale) for name in SETS)


def _workspace(line: Line) -> float:
    counted = line["counted"]
    return counted.get("workspace_read", 0.0) + counted.get("workspace_written", 0.0)


def _vector_work(line: Line) -> str:
    """Steps of 256 bytes per key on A2, register instructions on A5, both cores together."""
    counted = line["counted"]
    if counted.get("registers"):
        return f"{counted['registers'] / line['unit_keys']:.1f} instructions"
    return f"{sum(counted['vector_repeats'].values()) / line['unit_keys']:.1f} steps"


def _cells(line: Line) -> list[str]:
    """Tile, counts per key, predictions."""
    per_key = 1 / line["unit_keys"]
    predicted = line["predicted"]["memory"]
    return [
        line["tile"],
        _number(line["counted"]["caller_read"] * per_key),
        _number(_workspace(line) * per_key),
        _vector_work(line),
        _interval(predicted, line["block_kv"] * per_key * line["heads_at_once"]),
        _interval(predicted, 1 / _THOUSAND),
    ]


_HEAD = [
    "tile",
    "cache bytes/key",
    "workspace bytes/key",
    "vector work/key",
    "cycles/key tile",
    "kcycles/1024 keys",
]


def _decode(lines: Sequence[Line]) -> str:
    head = ["device", "D", "cache", "kernel", *_HEAD, "over 16 bit"]
    rows = []
    for line in lines:
        plain = _plain(lines, line)["predicted"]["memory"]
        ratios = {name: line["predicted"]["memory"][name] / plain[name] for name in SETS}
        name = line["form"] if line["form"] != _CUBE_FORM else "16 bit"
        rows.append(
            [
                line["target"],
                str(line["head_dim"]),
                line["cache"],
                f"**{name}**" if line["is_chosen"] else name,
                *_cells(line),
                ", ".join(f"{ratios[name]:.2f}" for name in SETS),
            ]
        )
    return _rows(head, rows)


def _plain(lines: Sequence[Line], like: Line) -> Line:
    return next(
        line
        for line in lines
        if line["form"] == _CUBE_FORM
        and (line["target"], line["head_dim"]) == (like["target"], like["head_dim"])
    )


def _vector_form(lines: Sequence[Line]) -> str:
    head = ["device", "D", "form", *_HEAD, "floor", "from cache", "cube work used"]
    rows = []
    for line in lines:
        steps = line["counted"].get("cube_steps", 0.0)
        used = 2 * line["head_dim"] * line["unit_keys"] / _STEP_MACS
        rows.append(
            [
                line["target"],
                str(line["head_dim"]),
                f"**{line['form']}**" if line["is_chosen"] else line["form"],
                *_cells(line),
                _number(line["floor"] / _THOUSAND),
                _interval(line["predicted"]["cache"], 1 / _THOUSAND),
                f"1 of {steps / used:.0f}" if steps else "no cube",
            ]
        )
    return _rows(head, rows)


def _kda(lines: Sequence[Line]) -> str:
    sizes = sorted({line["chunk_size"] for line in lines})
    named: dict[str, dict[int, list[dict[str, float]]]] = {}
    # stable: the gates of one kernel follow each other
    kernels = list(dict.fromkeys(line["kernel"] for line in lines))
    for line in sorted(lines, key=lambda line: kernels.index(line["kernel"])):
        by_size = named.setdefault(_phase(line), {})
        by_size.setdefault(line["chunk_size"], []).append(line["predicted"]["memory"])
    rows = []
    for name, by_size in named.items():
        cells = []
        for size in sizes:
            # a kernel that runs more than once, as the merge, counts as a whole
            parts = by_size.get(size, [])
            total = {s: sum(part[s] for part in parts) for s in SETS}
            cells.append(_interval(total, 1 / _THOUSAND) if parts else "")
        rows.append([name, *cells])
    return _rows(["kernel", *(f"C {size}" for size in sizes)], rows)


def _phase(line: Line) -> str:
    parts = [f"`{line['kernel']}`"]
    if line["kernel"] in ("kda_gate", "kda_prepare_scores"):
        parts.append("bounded gate" if line["gate"] == "bounded" else "unbounded gate")
    if not line["is_chosen"]:
        parts.append("all rows at once")
    if line["steep"] is not None:
        parts.append("all blocks steep" if line["steep"] else "no block steep")
    return ", ".join(parts)
