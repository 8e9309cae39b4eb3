"""The ``fa-triton`` program: global options and subcommands that are imported when they run."""

from __future__ import annotations

import importlib
import logging
import sys
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from fa_triton import __version__


@dataclass(frozen=True)
class _Subcommand:
    """Where a subcommand lives, without importing it."""

    module: str
    help: str


SUBCOMMANDS = {
    "case": _Subcommand(
        "fa_triton.cli.case", "Run test cases from a file and compare them with float64."
    ),
    "compile": _Subcommand(
        "fa_triton.cli.compile", "Compile the shipped kernels for Ascend targets and check them."
    ),
    "demo": _Subcommand("fa_triton.cli.demo", "Generate text with a real model on our kernels."),
    "doctor": _Subcommand(
        "fa_triton.cli.doctor", "Say what this machine can run and what to install for more."
    ),
    "plan": _Subcommand("fa_triton.cli.plan", "Print the plan of an attention problem."),
}

# Top-level module -> extra that installs it.
_EXTRA_OF_MODULE = {
    "accelerate": "demo",
    "ascendnpuir": "cpu",
    "gguf": "demo",
    "llvmlite": "cpu",
    "matplotlib": "dev",
    "pybind11": "cpu",
    "torch_npu": "npu",
    "transformers": "demo",
    "triton": "cpu",
}

_EXIT_FAILURE = 1


class _LazyGroup(TyperGroup):
    """A command group that imports a subcommand only when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Name the subcommands, in the order of the help text."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a stand-in that carries the help line only."""
        found = SUBCOMMANDS.get(cmd_name)
        return None if found is None else TyperCommand(cmd_name, help=found.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the subcommand that is about to run."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        if name in SUBCOMMANDS:
            return name, _load(name), rest
        return name, stand_in, rest


def _load(name: str) -> Any:
    """Import a subcommand's module and wrap its ``command`` function."""
    module = importlib.import_module(SUBCOMMANDS[name].module)
    single = typer.Typer(add_completion=False)
    single.command(name)(module.command)
    loaded = typer.main.get_command(single)
    loaded.name = name
    return loaded


app = typer.Typer(
    name="fa-triton",
    cls=_LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fa_triton {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Log what runs (kernel variants, caches, passes) and show tracebacks.",
        ),
    ] = False,
) -> None:
    """FlashAttention and Kimi Delta Attention in Triton for Ascend NPUs, also native on the CPU."""
    configure_logging(verbose)


class _LogLines(logging.Handler):
    """Write each record as one line, however narrow the terminal: keys are there to be copied."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(stderr=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Write through rich, which keeps lines apart from a spinner or a progress bar."""
        try:
            self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)
        except Exception:
            self.handleError(record)


def configure_logging(verbose: bool) -> None:
    """Send the library's log records to stderr.

    Args:
        verbose: Show debug records as well; otherwise warnings and errors only.
    """
    logger = logging.getLogger("fa_triton")
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    if not logger.handlers:
        handler = _LogLines()
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
        )
        logger.addHandler(handler)
    logger.propagate = False


def missing_package_message(module: str, python: tuple[int, int]) -> str | None:
    """Say how to install a missing module.

    Args:
        module: Name of the module that could not be imported.
        python: Major and minor version of the running CPython.

    Returns:
        One or two sentences, or None for a module that no extra installs.
    """
    extra = _EXTRA_OF_MODULE.get(module.partition(".")[0])
    if extra is None:
        return None
    if extra in ("cpu", "npu") and python >= (3, 12):
        return (
            f"`{module}` is missing: triton-ascend has wheels for CPython 3.10 and 3.11 only, "
            f"this is {python[0]}.{python[1]}. Use a virtual environment with one of those."
        )
    return f"`{module}` is missing: pip install 'fa_triton[{extra}]'"


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(_EXIT_FAILURE)


def main() -> None:
    """Run the program; errors of use end in one line, with a traceback only if asked for."""
    try:
        app()
    except (ImportError, ValueError, TypeError, RuntimeError, OSError) as error:
        if logging.getLogger("fa_triton").isEnabledFor(logging.DEBUG):
            raise
        message = str(error)
        if isinstance(error, ModuleNotFoundError) and error.name:
            known = missing_package_message(error.name, sys.version_info[:2])
            if known is None:
                raise
            message = known
        _fail(f"{message}\n(fa-triton --verbose shows the traceback)")


if __name__ == "__main__":
    main()
