"""``fa-triton plan``: plan an attention problem and print who computes what."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fa_triton.planner.report import PlanReport

_ALL_LINES = 0
# Planning walks every sequence and every row block in memory.
_MOST_SEQUENCES = 2**20
_LONGEST = 2**24


def command(
    q_lens: Annotated[
        str | None,
        typer.Option(metavar="LENS", help="Query lengths: 1,1,300 or 1*64 (64 times 1)."),
    ] = None,
    kv_lens: Annotated[
        str | None, typer.Option(metavar="LENS", help="Key lengths, in the same form.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=_MOST_SEQUENCES, help="Sequences, all of one length.")
    ] = None,
    seqlen_q: Annotated[
        int | None, typer.Option(min=0, max=_LONGEST, help="Query length of each of them.")
    ] = None,
    seqlen_kv: Annotated[
        int | None, typer.Option(min=0, max=_LONGEST, help="Key length of each of them.")
    ] = None,
    heads_q: Annotated[int, typer.Option(min=1, help="Query heads.")] = 32,
    heads_kv: Annotated[int, typer.Option(min=1, help="Key heads.")] = 8,
    head_dim: Annotated[int, typer.Option(min=1, help="Head dim.")] = 128,
    mask_mode: Annotated[int, typer.Option(help="0 none, 3 causal, 4 window.")] = 3,
    win_left: Annotated[
        int, typer.Option(min=-1, help="Keys seen left of the diagonal (mode 4), -1 all.")
    ] = -1,
    win_right: Annotated[
        int, typer.Option(min=-1, help="Keys seen right of the diagonal (mode 4), -1 all.")
    ] = -1,
    layout: Annotated[str, typer.Option(help="Layout of q: BSND, BNSD or TND.")] = "BSND",
    planner: Annotated[str, typer.Option(help="balanced or section_stream_k.")] = "balanced",
    device_target: Annotated[
        str, typer.Option(help="Whose core counts: A2, A3, A5 or a device name.")
    ] = "A2",
    num_aic: Annotated[
        int | None, typer.Option(min=1, help="Cube cores instead of the target's.")
    ] = None,
    num_aiv: Annotated[
        int | None, typer.Option(min=1, help="Vector cores instead of two per cube core.")
    ] = None,
    block_q: Annotated[
        int | None, typer.Option(min=1, help="Rows of a row block; default: CANN's rule.")
    ] = None,
    block_kv: Annotated[
        int | None, typer.Option(min=1, help="Keys of a key block; default: CANN's rule.")
    ] = None,
    one_head_rows: Annotated[
        bool, typer.Option("--one-head-rows", help="Do not merge the rows of a group (balanced).")
    ] = False,
    batch_invariant: Annotated[
        bool,
        typer.Option("--batch-invariant", help="Cut sequences as they are cut alone (balanced)."),
    ] = False,
    from_bounds: Annotated[
        bool,
        typer.Option("--from-bounds", help="The lengths are upper bounds (balanced)."),
    ] = False,
    lines: Annotated[
        int, typer.Option(min=_ALL_LINES, help="Lines per table at most, 0 all.")
    ] = 48,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")
    ] = False,
) -> None:
    """Print the plan of an attention problem: range and cost per core, split rows, makespan.

    Costs are counted by the planners' assumptions, not measured.
    """
    import numpy as np

    from fa_triton.planner import AttnWork, make_plan
    from fa_triton.planner.report import report_plan

    queries, keys = _lengths(q_lens, kv_lens, batch, seqlen_q, seqlen_kv)
    if mask_mode != 4 and (win_left, win_right) != (-1, -1):
        raise ValueError(
            f"`--win-left` and `--win-right` must be -1 in mask mode {mask_mode}, "
            f"got {win_left} and {win_right}"
        )
    work = AttnWork(
        q_lens=np.array(queries),
        kv_lens=np.array(keys),
        num_heads_q=heads_q,
        num_heads_kv=heads_kv,
        head_dim=head_dim,
        mask_mode=mask_mode,
        win_left=win_left,
        win_right=win_right,
        layout_q=layout,
        layout_out=layout,
        max_seqlen_q=max(queries),
        max_seqlen_kv=max(keys),
    )
    cube, vector = _cores(device_target, num_aic, num_aiv)
    plan = make_plan(
        planner,
        work,
        num_aic=cube,
        num_aiv=vector,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
        batch_invariant=batch_invariant,
        from_bounds=from_bounds,
    )
    report = report_plan(plan)
    if as_json:
        sys.stdout.write(json.dumps(asdict(report), indent=1) + "\n")
    else:
        _print(report, lines)


def parse_lengths(text: str, option: str) -> list[int]:
    """Read ``1,1,300`` or ``1*64,300``.

    Args:
        text: Lengths, with repetitions.
        option: Name of the option, for the error.

    Raises:
        ValueError: The text has another form.
    """
    lengths: list[int] = []
    for item in text.split(","):
        length, star, times = item.partition("*")
        if not length.strip().isdecimal() or (star and not times.strip().isdecimal()):
            raise ValueError(f"`{option}` must be lengths such as 1,1,300 or 1*64, got {text!r}")
        count = int(times) if star else 1
        if int(length) > _LONGEST or len(lengths) + count > _MOST_SEQUENCES:
            raise ValueError(
                f"`{option}` must name at most {_MOST_SEQUENCES} lengths of at most {_LONGEST}, "
                f"got {text!r}"
            )
        lengths += [int(length)] * count
    if not lengths:
        raise ValueError(f"`{option}` must name one length at least, got {text!r}")
    return lengths


def _lengths(
    q_lens: str | None,
    kv_lens: str | None,
    batch: int | None,
    seqlen_q: int | None,
    seqlen_kv: int | None,
) -> tuple[list[int], list[int]]:
    by_list = q_lens is not None or kv_lens is not None
    by_shape = batch is not None or seqlen_q is not None or seqlen_kv is not None
    if by_list == by_shape:
        raise ValueError(
            "lengths must come from `--q-lens` and `--kv-lens` or from `--batch`, `--seqlen-q` "
            f"and `--seqlen-kv`, got {'both' if by_list else 'neither'}"
        )
    if by_list:
        if q_lens is None or kv_lens is None:
            missing = "--q-lens" if q_lens is None else "--kv-lens"
            raise ValueError(f"`--q-lens` and `--kv-lens` must come together, got no `{missing}`")
        queries, keys = parse_lengths(q_lens, "--q-lens"), parse_lengths(kv_lens, "--kv-lens")
        if len(queries) != len(keys):
            raise ValueError(
                "`--q-lens` and `--kv-lens` must name as many sequences, "
                f"got {len(queries)} and {len(keys)}"
            )
        return queries, keys
    if seqlen_q is None or seqlen_kv is None:
        missing = "--seqlen-q" if seqlen_q is None else "--seqlen-kv"
        raise ValueError(f"`--seqlen-q` and `--seqlen-kv` must come together, got no `{missing}`")
    count = batch or 1
    return [seqlen_q] * count, [seqlen_kv] * count


def _cores(device_target: str, num_aic: int | None, num_aiv: int | None) -> tuple[int, int]:
    from fa_triton.targets import target

    device = target(device_target)
    cube = num_aic or device.cube_cores
    return cube, num_aiv or cube * device.vector_cores // device.cube_cores


def _print(report: PlanReport, lines: int) -> None:
    console = Console(highlight=False)
    rows = "one query head" if report.one_head_rows else "the heads of a group"
    kind = ", batch-invariant" if report.batch_invariant else ""
    kind += ", programs in turn" if report.in_turn else ""
    console.print(
        f"{report.planner}{kind}: {report.num_aic} cube and {report.num_aiv} vector cores, blocks "
        f"of {report.block_q} rows ({rows}) x {report.block_kv} keys, {report.sections} "
        f"section{'s' * (report.sections != 1)}, table of {report.table_words} words"
    )
    _print_cores(console, report, lines)
    if report.split_rows:
        _print_split_rows(console, report, lines)
    else:
        console.print("no row block is split: no combine phase")
    console.print(
        f"makespan {report.makespan_units:,.1f} units = attention {report.attention_units:,.1f} "
        f"+ barriers {report.barrier_units:,.1f} + combine {report.combine_units:,.1f}"
    )
    console.print(
        f"makespan / ideal = {report.ratio:.4f}  (ideal {report.ideal_units:,.1f} units: all "
        "blocks spread evenly, splitting free; costs are assumptions, not measurements)"
    )


def _print_cores(console: Console, report: PlanReport, lines: int) -> None:
    owner = "program" if report.in_turn else "core"
    table = Table(
        title=f"{owner.title()}s: positions are (head entry, row block, key block), half-open"
    )
    for name in ("section", owner, "start", "end", "units", "of the ideal"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = report.cores[: lines or None]
    for core in shown:
        table.add_row(
            str(core.section),
            str(core.core),
            "{}, {}, {}".format(*core.start),
            "{}, {}, {}".format(*core.end),
            f"{core.units:,.1f}",
            f"{core.units / report.ideal_units:.1%}" if report.ideal_units else "",
        )
    console.print(table)
    _print_rest(console, len(report.cores) - len(shown))


def _print_split_rows(console: Console, report: PlanReport, lines: int) -> None:
    table = Table(title="Split row blocks and the tasks that combine them")
    for name in ("section", "head entry", "row block", "rows", "pieces", "tasks"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = report.split_rows[: lines or None]
    for row in shown:
        cells = (row.section, row.bn, row.row_block, row.rows, row.slots, row.tasks)
        table.add_row(*(str(cell) for cell in cells))
    console.print(table)
    _print_rest(console, len(report.split_rows) - len(shown))


def _print_rest(console: Console, rest: int) -> None:
    if rest > 0:
        console.print(f"... and {rest} more (--lines 0 prints all)")
