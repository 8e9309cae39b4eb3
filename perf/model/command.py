"""``python -m perf.run model``: compiled kernels, counted, and cycles predicted for an NPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from perf.environment import ROOT, command_line, provenance
from perf.model.decode import cases, decode_line
from perf.model.kda import phase_lines
from perf.model.tables import DOCUMENTS, markers, table
from perf.plot import fill_readme

RESULTS = ROOT / "perf" / "results" / "model.jsonl"
# of the machine that computes predictions nothing matters
_IRRELEVANT = ("device",)

Line = dict[str, Any]


def command(
    output: Annotated[Path, typer.Option(help="JSONL file, replaced.")] = RESULTS,
    docs: Annotated[bool, typer.Option(help="Renew the tables of the documents.")] = True,
) -> None:
    """Predict decode and linear attention on NPUs from compiled code; nothing runs on one."""
    console = Console(highlight=False)
    origin = {k: v for k, v in provenance(command_line()).items() if k not in _IRRELEVANT}
    lines = []
    for line in model_lines():
        lines.append(line)
        console.print(_short(line))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(line | origin) + "\n" for line in lines))
    for document, names in DOCUMENTS.items():
        for name in names:
            console.print(Markdown(table(name, lines)))
            if docs:
                fill_readme(table(name, lines), ROOT / document, markers(name))
    console.print(f"{len(lines)} predictions in {output}")


def model_lines() -> Iterator[Line]:
    """Model everything, one line per kernel and workload."""
    for case in cases():
        yield decode_line(case)
    yield from phase_lines()


def _short(line: Line) -> str:
    predicted = ", ".join(
        f"{name} {cycles:.0f}" for name, cycles in line["predicted"]["memory"].items()
    )
    if line["kind"] == "decode":
        what = f"{line['cache']}, {line['form']}, D {line['head_dim']}, group {line['group']}"
    else:
        what = f"{line['kernel']}, C {line['chunk_size']}"
    return f"{line['target']} {what} {line['tile']}: predicted cycles {predicted}"
