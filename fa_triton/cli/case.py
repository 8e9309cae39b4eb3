"""``fa-triton case``: run the cases of a file and compare the results with float64."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fa_triton.cases.work import MAX_GFLOP

if TYPE_CHECKING:
    import torch

    from fa_triton.cases.result import CaseResult

_SOME_FAILED = 1


class Device(str, Enum):
    """Where cases are computed."""

    npu = "npu"
    cuda = "cuda"
    cpu = "cpu"


def command(
    file: Annotated[
        Path,
        typer.Argument(
            help="Cases: a JSON list, JSON with named lists in `files`, or CSV with one per row.",
            exists=True,
            dir_okay=False,
        ),
    ],
    case_id: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Only this case or group; may be repeated."),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.cpu,
    csv: Annotated[
        Path | None, typer.Option(help="Write results there, one line as each case ends.")
    ] = None,
    max_gflop: Annotated[
        float,
        typer.Option(
            min=0, help="Cases of more floating-point operations are planned, not computed."
        ),
    ] = MAX_GFLOP,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases and leave.")] = False,
) -> None:
    """Run test cases of attention and compare each result with float64.

    A case passes if its root-mean-square error is at most 1.1 times that of an emulation that
    rounds only what must be stored, its largest error at most twice that emulation's, and if it
    keeps the tolerance of CANN's own tests as well as that emulation does. Large cases are
    validated and planned. Rows that a rule forbids must be refused.

    Exit code 1: a case failed.
    """
    from fa_triton.cases.files import read_cases, select_cases

    cases = read_cases(file)
    if case_id:
        cases = select_cases(cases, case_id)
    out, progress_console = Console(), Console(stderr=True)
    if list_cases:
        for case in cases:
            out.print(f"{case.id}  {case}", markup=False, highlight=False, soft_wrap=True)
        return
    place = _device(device)
    with progress_console.status("importing torch"):
        from fa_triton.cases.report import CsvReport
        from fa_triton.cases.run import run_case

    results: list[CaseResult] = []
    with ExitStack() as stack:
        report = stack.enter_context(CsvReport(csv)) if csv else None
        progress = stack.enter_context(_progress(progress_console))
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=case.id)
            result = run_case(case, place, max_gflop)
            results.append(result)
            if report:
                report.add(result)
            progress.advance(task)
    _print(out, results)
    if not all(result.passed for result in results):
        raise typer.Exit(_SOME_FAILED)


def _device(name: Device) -> torch.device:
    """Return the device asked for, if this machine has it."""
    import torch

    if name is Device.npu:
        try:
            # Importing torch_npu adds torch.npu.
            importlib.import_module("torch_npu")
            found = torch.npu.is_available()  # pyright: ignore[reportAttributeAccessIssue]
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            raise RuntimeError(
                f"`--device npu` needs an Ascend NPU and torch_npu, got: {error}; on a machine "
                "with driver and CANN pip install 'fa_triton[npu]', here use --device cpu"
            ) from error
        if not found:
            raise RuntimeError(
                "`--device npu` needs an Ascend NPU, torch_npu finds none; check npu-smi info, "
                "here use --device cpu"
            )
    if name is Device.cuda and not torch.cuda.is_available():
        raise RuntimeError(
            "`--device cuda` needs an NVIDIA GPU and a CUDA build of torch, torch finds none; "
            "fa-triton doctor tells what there is, here use --device cpu"
        )
    return torch.device(name.value)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _print(console: Console, results: list[CaseResult]) -> None:
    from fa_triton.cases.report import row

    table = Table(box=box.SIMPLE, pad_edge=False)
    columns = {
        "case": "id",
        "path": "path",
        "GFLOP": "gflop",
        "RMS": "rms",
        "max": "max_error",
        "CANN fail": "vendor_fail_ratio",
        "emulation's": "emulation_fail_ratio",
    }
    for name in columns:
        is_text = name in ("case", "path")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=is_text)
    table.add_column("verdict", no_wrap=True)
    for result in results:
        cells = row(result)
        colour = "green" if result.passed else "red"
        verdict = f"[{colour}]{cells['verdict']}[/{colour}]"
        table.add_row(*(cells[column] for column in columns.values()), verdict)
    console.print(table)
    failed = [result for result in results if not result.passed]
    for result in failed:
        told = f"{result.case.id}: {result.detail}"
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(results) - len(failed)} passed, {len(failed)} failed", highlight=False)
