"""``fa-triton compile``: compile the shipped kernels for Ascend targets and check them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from fa_triton.compile.batch import Job
    from fa_triton.compile.variant import KernelVariant, VariantResult

_MOST_DETAILS = 20
_UNLIMITED = 1000


def command(
    op: Annotated[
        list[str] | None, typer.Argument(help="Operators to compile; all if none is named.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="A2, A3, A5 or a device name such as Ascend910B1; repeatable."),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Only this variant, by the key that launches log."),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Everything that is shipped (as without arguments).")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list of reports and nothing else.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Print the keys of the shipped variants and leave.")
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Compiles at the same time.")
    ] = max(1, os.cpu_count() or 1),
    update_records: Annotated[
        bool, typer.Option("--update-records", help="Write the results to the committed records.")
    ] = False,
) -> None:
    """Compile the shipped kernels for Ascend targets, without a device, and check the result.

    Every kernel declares, per target, whether it is pipelined, shares its rows between the vector
    cores and avoids relays; a difference fails the check. Exit code 1 if any check fails.
    """
    from fa_triton.compile.shipped import select, shipped_variants
    from fa_triton.compile.toolchain import require

    if all_ and (op or target or variant):
        raise ValueError("`--all` must stand alone, got operators, targets or variants as well")
    if not list_:
        require()
    shipped = shipped_variants()
    if list_:
        _print_keys(shipped)
        return
    chosen = select(shipped, op or (), variant or (), target or ())
    if not chosen:
        raise ValueError("`--target` must be one the chosen variants are shipped for, got none")
    results = _compile(chosen, jobs)
    if as_json:
        sys.stdout.write(json.dumps([result.to_dict() for result in results], indent=1) + "\n")
    else:
        _print_table(results)
    if update_records:
        _update_records(results, complete=not (op or target or variant))
    if not all(result.ok for result in results):
        raise typer.Exit(1)


def _print_keys(variants: Sequence[KernelVariant]) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for variant in variants:
        console.print(variant.key)


def _compile(chosen: Sequence[Job], jobs: int) -> list[VariantResult]:
    from fa_triton.compile.batch import compile_all

    columns = (
        TextColumn("compile"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failed]}"),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(chosen), failed="")
        failed = 0

        def show(result: VariantResult) -> None:
            nonlocal failed
            failed += not result.ok
            progress.update(
                task,
                advance=1,
                description=f"{result.variant.kernel} {result.variant.tile} {result.target}",
                failed=f"[red]{failed} failed[/red]" if failed else "",
            )

        return compile_all(chosen, jobs, show)


def _print_table(results: Sequence[VariantResult]) -> None:
    """Print one row per kernel, tile and target; forms of one tile are drawn together."""
    console = Console(highlight=False)
    groups: dict[tuple[str, str, str, str], list[VariantResult]] = {}
    for result in results:
        variant = result.variant
        group = (variant.op, variant.kernel, variant.tile, result.target)
        groups.setdefault(group, []).append(result)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("op", "kernel", "tile", "for", "ok"):
        table.add_column(name, no_wrap=True)
    for name in ("UB/L1/L0C", "mma", "depth", "rows", "relays", "loops"):
        table.add_column(name, justify="right", no_wrap=True)
    for group, members in groups.items():
        table.add_row(*group, *_row(members))
    # A row is never cut: a terminal that is too narrow wraps it.
    unlimited = console.options.update(width=_UNLIMITED)
    console.width = max(console.width, console.measure(table, options=unlimited).maximum)
    console.print(table)
    console.print("Compiled up to the device assembler; nothing ran.")
    failed = [result for result in results if not result.ok]
    for result in failed[:_MOST_DETAILS]:
        _print_details(console, result)
    if len(failed) > _MOST_DETAILS:
        console.print(f"\n… and {len(failed) - _MOST_DETAILS} more; --json lists all")
    limits = {
        f"{r.target} {r.ub_limit // 1024}/{r.l1_limit // 1024}/{r.l0c_limit // 1024}"
        for r in (result.report for result in results)
    }
    console.print(f"UB/L1/L0C: largest planned KiB per core, of {', '.join(sorted(limits))}")
    reasons = {
        f"{result.variant.kernel} on {result.target}: {reason}"
        for result in results
        if (reason := result.variant.properties[result.target].reason)
    }
    for reason in sorted(reasons):
        console.print(reason, markup=False)
    seconds = sum(result.report.seconds for result in results)
    console.print(
        f"{len(results) - len(failed)} of {len(results)} compile as declared "
        f"({seconds:.0f} s of compiling, kept on disk)"
    )


def _row(members: Sequence[VariantResult]) -> list[str]:
    passed = sum(member.ok for member in members)
    style = "green" if passed == len(members) else "red"
    count = f"[{style}]{passed}/{len(members)}[/{style}]"
    reports = [member.report for member in members if member.report.core]
    if not reports:
        return [count, *["-"] * 6]
    memories = (
        max(report.ub_bytes for report in reports),
        max(report.l1_bytes for report in reports),
        max(report.l0c_bytes for report in reports),
    )
    return [
        count,
        "/".join(f"{used / 1024:.0f}" for used in memories),
        _span(report.mmas for report in reports),
        _span(report.pipeline_depth for report in reports),
        "shared" if all(report.rows_shared for report in reports) else "-",
        _span(report.relays for report in reports),
        _span(report.scalar_loops for report in reports),
    ]


def _span(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"


def _print_details(console: Console, result: VariantResult) -> None:
    """Say what is wrong with a failed one, how to repeat it, and where its IR lies."""
    variant = result.variant
    console.print(f"\n{variant.kernel} {variant.tile} on {result.target}", style="bold red")
    lines = [
        *result.mismatches,
        f"IR: {result.report.ir_path}",
        f"alone: fa-triton compile --target {result.target} --variant {variant.key}",
    ]
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _update_records(results: Sequence[VariantResult], *, complete: bool) -> None:
    from fa_triton.compile import records

    console = Console(stderr=True)
    for path in records.update(results, complete):
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
