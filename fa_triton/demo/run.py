"""The demo from start to end: load, generate twice, compare."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.status import Status
from torch import Tensor

from fa_triton.demo.comparison import compare
from fa_triton.demo.compiling import announced_compiles
from fa_triton.demo.generation import Generation, StepCounter, TextPieces, generate
from fa_triton.demo.model import LoadedModel, has_copy, load_model
from fa_triton.demo.packages import weights_file
from fa_triton.demo.prompts import encode
from fa_triton.demo.report import report
from fa_triton.device import cpu_mode
from fa_triton.integrations.transformers import register

OURS, THEIRS = "fa_triton", "sdpa"

# One prefill and one decode step reach every kernel variant that the generation needs first.
_WARM_UP_TOKENS = 2


@dataclass(frozen=True)
class DemoOptions:
    """What to generate.

    Attributes:
        prompts: One or more prompts; several are generated as one batch.
        max_new_tokens: Upper bound of the generated tokens.
        dtype: ``float32`` or ``bfloat16``.
        device: Where the model runs.
    """

    prompts: list[str]
    max_new_tokens: int
    dtype: str
    device: torch.device


def run_demo(options: DemoOptions, out: Console, progress: Console) -> bool:
    """Generate with our attention and with SDPA, and print how they compare.

    Args:
        options: What to generate.
        out: Gets the text and the table.
        progress: Gets what is happening meanwhile.

    Returns:
        Whether every token is equal.
    """
    loaded = _load(options, progress)
    register(OURS)
    inputs = encode(loaded.tokenizer, options.prompts)
    _warm_up(loaded, inputs, options, progress)
    if len(options.prompts) == 1:
        ours = _generate_streaming(loaded, inputs, options, out)
    else:
        ours = _generate_batch(loaded, inputs, options, out, progress)
    with _step(progress, "generating again with torch SDPA"):
        theirs = generate(loaded, THEIRS, inputs, options.max_new_tokens)
    comparison = compare(ours, theirs)
    if not comparison.all_equal:
        _print_texts(out, options.prompts, theirs, "torch SDPA says")
    out.print(report(ours, theirs, comparison, options.dtype, options.device))
    return comparison.all_equal


def _load(options: DemoOptions, progress: Console) -> LoadedModel:
    weights = weights_file()
    what = "loading the model"
    if not has_copy(weights):
        what = "dequantising the model (once; the next start takes a second)"
    with _step(progress, what):
        return load_model(weights, getattr(torch, options.dtype), options.device)


def _warm_up(
    loaded: LoadedModel, inputs: dict[str, Tensor], options: DemoOptions, progress: Console
) -> None:
    """Compile what is not compiled yet, and let both sides take their first steps untimed."""
    with _step(progress, "warming up") as status, contextlib.ExitStack() as stack:
        if options.device.type == "cpu" and cpu_mode() == "native":
            stack.enter_context(
                announced_compiles(lambda kernel: status.update(f"compiling {kernel}"))
            )
        for implementation in (OURS, THEIRS):
            generate(loaded, implementation, inputs, _WARM_UP_TOKENS)


def _generate_streaming(
    loaded: LoadedModel, inputs: dict[str, Tensor], options: DemoOptions, out: Console
) -> Generation:
    """Print a single prompt and its answer as it comes."""
    _print_prompt(out, options.prompts[0])

    def write(piece: str) -> None:
        out.print(piece, end="", markup=False, highlight=False, soft_wrap=True)

    streamer = TextPieces(loaded.tokenizer, write)
    generation = generate(loaded, OURS, inputs, options.max_new_tokens, streamer)
    out.print("\n")
    return generation


def _generate_batch(
    loaded: LoadedModel,
    inputs: dict[str, Tensor],
    options: DemoOptions,
    out: Console,
    progress: Console,
) -> Generation:
    """Generate a batch under a progress bar, then print prompts and answers."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=progress, transient=True) as bar:
        task = bar.add_task(
            f"generating {len(options.prompts)} prompts", total=options.max_new_tokens
        )
        streamer = StepCounter(lambda: bar.advance(task))
        generation = generate(loaded, OURS, inputs, options.max_new_tokens, streamer)
    _print_texts(out, options.prompts, generation)
    return generation


def _print_texts(
    out: Console, prompts: list[str], generation: Generation, title: str | None = None
) -> None:
    if title:
        out.print(title, style="bold")
    for prompt, text in zip(prompts, generation.texts, strict=True):
        _print_prompt(out, prompt)
        out.print(f"{text}\n", markup=False, highlight=False, soft_wrap=True)


def _print_prompt(out: Console, prompt: str) -> None:
    out.print(f"> {prompt}", style="bold", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _step(console: Console, what: str) -> Iterator[Status]:
    """Show a spinner while a step runs and a line with its time afterwards."""
    start = time.perf_counter()
    with console.status(what) as status:
        yield status
    console.print(f"{what}: {time.perf_counter() - start:.1f} s", style="dim", highlight=False)
