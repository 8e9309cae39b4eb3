"""``python -m perf.run planner``: how even plans are, counted; how long they take, measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fa_triton.planner import BALANCED, SECTION_STREAM_K
from fa_triton.planner.cost import CYCLES_PER_UNIT
from fa_triton.planner.statistics import plan_cost
from perf.environment import command_line, provenance
from perf.planner_bounds import bounds_makespans
from perf.planner_peers import PEERS, Problem
from perf.planner_plot import DOCUMENT, PLOT, fill_document, plot
from perf.planner_timing import NUM_AIC, measure, planning_cases
from perf.planner_workloads import CORE_COUNTS, PlannerWorkload, planner_workloads

RESULTS = Path(__file__).parent / "results" / "planner.jsonl"

Line = dict[str, Any]


def command(
    rounds: Annotated[int, typer.Option(min=1, help="Timed plans per batch and planner.")] = 300,
    output: Annotated[Path, typer.Option(help="JSONL file, replaced.")] = RESULTS,
    picture: Annotated[Path, typer.Option(help="PNG file, replaced.")] = PLOT,
    document: Annotated[Path, typer.Option(help="File with the markers, renewed.")] = DOCUMENT,
) -> None:
    """Compare the planners with each other and with four peers; no device is needed."""
    console = Console(highlight=False)
    origin = provenance(command_line())
    lines = [
        line | origin
        for cores in CORE_COUNTS
        for workload in planner_workloads().values()
        for line in makespans(workload, cores)
    ]
    for cores in CORE_COUNTS:
        console.print(_makespan_table(lines, cores))
    unknown = [line | origin for line in bounds_makespans()]
    console.print(_bounds_table(unknown))
    times = [line | origin for line in planning_times(rounds)]
    console.print(_time_table(times))
    lines += unknown + times
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot(lines, picture)
    fill_document(lines, document)
    console.print(f"{len(lines)} results in {output}, plot in {picture}")


def makespans(workload: PlannerWorkload, cores: int) -> list[Line]:
    """Makespan over ideal with every planner, combine included."""
    problem = Problem.of(workload.work, workload.block_q, workload.block_kv, cores)
    ideal = workload.total_block_cost * CYCLES_PER_UNIT / cores
    ratios = {name: peer(problem) / ideal for name, peer in PEERS.items()}
    for planner in (SECTION_STREAM_K, BALANCED):
        ratios[planner] = plan_cost(workload.plan(planner, cores)).ratio
    return [
        {
            "kind": "makespan",
            "workload": workload.name,
            "title": workload.title,
            "cores": cores,
            "planner": planner,
            "ratio": round(ratio, 6),
            "goal": workload.goals[cores] if planner == BALANCED else None,
        }
        for planner, ratio in ratios.items()
    ]


def planning_times(rounds: int) -> list[Line]:
    """Planning time of our two planners."""
    return [
        {
            "kind": "planning_time",
            "workload": case.name,
            "title": case.title,
            "cores": NUM_AIC,
            "planner": planner,
            "goal_ms": case.goal_ms if planner == BALANCED else None,
            **asdict(elapsed),
        }
        for case in planning_cases()
        for planner, elapsed in measure(case, rounds).items()
    ]


def _makespan_table(lines: list[Line], cores: int) -> Table:
    table = Table(title=f"Makespan / ideal on {cores} cores, counted, combine included")
    planners = list(dict.fromkeys(line["planner"] for line in lines))
    for name in ("workload", *planners, "goal"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for name in dict.fromkeys(line["workload"] for line in lines):
        found = {
            line["planner"]: line
            for line in lines
            if line["workload"] == name and line["cores"] == cores
        }
        ratios = [f"{found[planner]['ratio']:.4f}" for planner in planners]
        table.add_row(name, *ratios, f"{found[BALANCED]['goal']:.3f}")
    return table


def _bounds_table(lines: list[Line]) -> Table:
    table = Table(title=f"Makespan / ideal on {NUM_AIC} cores, lengths known on the device only")
    knowledge = list(dict.fromkeys(line["planned_from"] for line in lines))
    for name in ("batch", *knowledge):
        table.add_column(name, justify="left" if name == "batch" else "right")
    for title in dict.fromkeys(line["title"] for line in lines):
        ratios = [f"{line['ratio']:.3f}" for line in lines if line["title"] == title]
        table.add_row(title, *ratios)
    return table


def _time_table(lines: list[Line]) -> Table:
    table = Table(title=f"Planning on {NUM_AIC} cores, measured on {lines[0]['device']}")
    for name in ("batch", "planner", "median ms", "best ms", "encode ms", "goal ms"):
        table.add_column(name, justify="left" if name in ("batch", "planner") else "right")
    for line in lines:
        times = [f"{line[name]:.3f}" for name in ("median_ms", "best_ms", "encode_ms")]
        goal = "" if line["goal_ms"] is None else f"{line['goal_ms']:.1f}"
        table.add_row(line["workload"], line["planner"], *times, goal)
    return table
