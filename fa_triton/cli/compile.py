"""``fa-triton compile``: compile the shipped kernels for Ascend targets and check them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from fa_triton.compile.batch import Job
    from fa_triton.compile.variant import KernelVariant, VariantResult


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
    shipped = shipped_variants()
    if list_:
        _print_keys(shipped)
        return
    chosen = select(shipped, op or (), variant or (), target or ())
    if not chosen:
        raise ValueError("`--target` must be one the chosen variants are shipped for, got none")
    require()
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
    console = Console()
    table = Table(title="Compiled up to the device assembler (KiB per core; nothing ran)")
    for name in ("op", "kernel", "tile", "target", "check"):
        table.add_column(name, no_wrap=True)
    for name in ("UB", "L1", "L0C", "dot/mma", "depth", "rows", "relays", "loops", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_row(result))
    console.print(table)
    for result in results:
        _print_details(console, result)
    passed = sum(result.ok for result in results)
    console.print(f"{passed} of {len(results)} compile as declared", highlight=False)
    reasons = {
        f"{result.variant.kernel} on {result.target}: {reason}"
        for result in results
        if (reason := result.variant.properties[result.target].reason)
    }
    for reason in sorted(reasons):
        console.print(f"  {reason}", markup=False, highlight=False)


def _row(result: VariantResult) -> list[str]:
    report = result.report
    names = [result.variant.op, result.variant.kernel, result.variant.tile, result.target]
    if not report.core:
        return [*names, "[red]does not compile[/red]", *[""] * 8, f"{report.seconds:.1f}"]
    memories = (
        (report.ub_bytes, report.ub_limit),
        (report.l1_bytes, report.l1_limit),
        (report.l0c_bytes, report.l0c_limit),
    )
    return [
        *names,
        "[green]ok[/green]" if result.ok else "[red]differs[/red]",
        *(f"{used / 1024:.0f}/{limit // 1024}" for used, limit in memories),
        f"{report.dots}/{report.mmas}",
        str(report.pipeline_depth) if report.pipelined else "-",
        "shared" if report.rows_shared else "-",
        str(report.relays),
        str(report.scalar_loops),
        f"{report.seconds:.1f}",
    ]


def _print_details(console: Console, result: VariantResult) -> None:
    """Say what is wrong with a failed one, how to repeat it, and where its IR lies."""
    if result.ok:
        return
    variant = result.variant
    console.print(f"\n{variant.kernel} {variant.tile} {result.target}", style="bold red")
    for line in result.mismatches:
        console.print(f"  {line}", markup=False, highlight=False)
    console.print(f"  IR: {result.report.ir_path}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"  alone: fa-triton compile --target {result.target} --variant '{variant.key}'",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _update_records(results: Sequence[VariantResult], *, complete: bool) -> None:
    from fa_triton.compile import records

    console = Console(stderr=True)
    for path in records.update(results, complete):
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
