"""``fa-triton demo``: a real model generates text on our kernels."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    import torch

_TOKENS_DIFFER = 1


class Dtype(str, Enum):
    """Dtype of the model."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def command(
    prompt: Annotated[
        str | None,
        typer.Option(help="What to ask; by default a question about France.", show_default=False),
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(help="A file with one prompt per line: generate all of them as one batch."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Stop after so many tokens.")] = 48,
    dtype: Annotated[
        Dtype,
        typer.Option(help="float32 must give SDPA's tokens; bfloat16 reports the difference."),
    ] = Dtype.float32,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where to run, for instance cpu; by default the accelerator, else cpu.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Generate text with SmolLM2-135M-Instruct and compare with torch's attention.

    Exit code 1: float32 tokens differ from those of torch SDPA.
    """
    from fa_triton.demo.packages import require_packages
    from fa_triton.demo.prompts import DEFAULT_PROMPT, check_prompt, read_prompts

    if prompt is not None and batch is not None:
        raise typer.BadParameter("`--prompt` and `--batch` must not be given together")
    try:
        if batch is not None:
            prompts = read_prompts(batch)
        else:
            prompts = [DEFAULT_PROMPT if prompt is None else check_prompt(prompt)]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    require_packages()

    _quiet_libraries()
    out, progress = Console(), Console(stderr=True)
    with progress.status("importing torch and transformers"):
        from fa_triton.demo.run import DemoOptions, run_demo

    options = DemoOptions(prompts, max_new_tokens, dtype.value, _device(device))
    all_equal = run_demo(options, out, progress)
    if dtype is Dtype.float32 and not all_equal:
        raise typer.Exit(_TOKENS_DIFFER)


def _quiet_libraries() -> None:
    """Work offline and leave the terminal to our own progress; before the first import."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _device(name: str | None) -> torch.device:
    """Return the device asked for, by default the machine's accelerator, else the CPU."""
    import torch

    if name is None:
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if found is None else found
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"`--device` must be a device of torch, got {name!r}") from error
    try:
        # Reading a value back needs a real device; torch without CUDA fails by an AssertionError.
        torch.zeros(1, device=device).item()
    except (AssertionError, ImportError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise typer.BadParameter(
            f"`--device` must be a device that this machine has, got {name!r}: {reason} "
            "(fa-triton doctor tells what there is)"
        ) from error
    return device
