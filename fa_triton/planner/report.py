"""A plan in plain numbers: what ``fa-triton plan`` prints and writes as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from fa_triton.planner.cost import CYCLES_PER_UNIT
from fa_triton.planner.schedule import Plan
from fa_triton.planner.statistics import PlanCost, plan_cost
from fa_triton.planner.table import encode

Position = tuple[int, int, int]


@dataclass(frozen=True)
class CoreReport:
    """One core of one section; positions are (bn, row block, key block), half-open.

    Where programs are taken in turn, they stand in the place of cores.
    """

    section: int
    core: int
    start: Position
    end: Position
    units: float


@dataclass(frozen=True)
class SplitReport:
    """One row block that several cores share."""

    section: int
    bn: int
    row_block: int
    rows: int
    slots: int
    tasks: int


@dataclass(frozen=True)
class PlanReport:
    """A plan; costs in units of :mod:`fa_triton.planner.cost`.

    Attributes:
        planner: Name of the planner.
        num_aic: Cube cores.
        batch_invariant: Whether the cuts of a sequence depend on nothing but the sequence.
        in_turn: Whether there are more programs than cores, which the cores take in turn.
        num_aiv: Vector cores.
        block_q: Rows of a row block.
        block_kv: Keys of a key block.
        one_head_rows: Whether rows belong to one query head.
        sections: Sections.
        combines: Whether the combine phase runs.
        slots: Partial slots in the workspace.
        table_words: Length of the metadata table.
        attention_units: Slowest core; section_stream_k: summed over sections.
        barrier_units: Barriers.
        combine_units: Slowest vector core, summed over sections.
        makespan_units: All of it.
        ideal_units: All blocks spread evenly, splitting free.
        ratio: Makespan over ideal.
        cores: Cores with work.
        split_rows: Row blocks with a cut inside.
    """

    planner: str
    num_aic: int
    batch_invariant: bool
    in_turn: bool
    num_aiv: int
    block_q: int
    block_kv: int
    one_head_rows: bool
    sections: int
    combines: bool
    slots: int
    table_words: int
    attention_units: float
    barrier_units: float
    combine_units: float
    makespan_units: float
    ideal_units: float
    ratio: float
    cores: list[CoreReport]
    split_rows: list[SplitReport]


def report_plan(plan: Plan) -> PlanReport:
    """Describe a plan and what it costs."""
    cost = plan_cost(plan)
    return PlanReport(
        planner=plan.planner,
        num_aic=cost.num_cores,
        batch_invariant=plan.batch_invariant,
        in_turn=plan.shared_cores is not None,
        num_aiv=plan.num_aiv,
        block_q=plan.block_q,
        block_kv=plan.block_kv,
        one_head_rows=plan.one_head_rows,
        sections=plan.num_sections,
        combines=plan.is_fd,
        slots=plan.num_slots,
        table_words=encode(plan).size,
        attention_units=_units(cost.attention),
        barrier_units=_units(cost.barrier_cycles),
        combine_units=_units(cost.combine),
        makespan_units=_units(cost.makespan),
        ideal_units=_units(cost.ideal),
        ratio=round(cost.ratio, 6),
        cores=_cores(plan, cost),
        split_rows=_split_rows(plan),
    )


def _units(cycles: float) -> float:
    return round(cycles / CYCLES_PER_UNIT, 3)


def _cores(plan: Plan, cost: PlanCost) -> list[CoreReport]:
    cores = []
    cycles = cost.segment_cycles.tolist()
    for index, (start, end) in enumerate(
        zip(plan.starts.tolist(), plan.ends.tolist(), strict=True)
    ):
        if start != end:
            section, core = divmod(index, plan.num_aic)
            cores.append(CoreReport(section, core, tuple(start), tuple(end), _units(cycles[index])))
    return cores


def _split_rows(plan: Plan) -> list[SplitReport]:
    """Collect the combine tasks of every split row block."""
    found: dict[tuple[int, int, int], list[list[int]]] = {}
    for vector, (first, count) in enumerate(plan.task_ranges.tolist()):
        for task in plan.tasks[first : first + count].tolist():
            found.setdefault((vector // plan.num_aiv, task[0], task[1]), []).append(task)
    return [
        SplitReport(
            section=section,
            bn=bn,
            row_block=m,
            rows=max(task[4] + task[5] for task in tasks),
            slots=tasks[0][3],
            tasks=len(tasks),
        )
        for (section, bn, m), tasks in found.items()
    ]
