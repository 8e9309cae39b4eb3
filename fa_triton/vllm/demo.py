"""``make vllm-demo``: vLLM serves a real model, its attention computed by these kernels."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer
from rich.console import Console

from fa_triton.vllm.settings import SWITCH_VARIABLE

_ENVIRONMENT = {
    SWITCH_VARIABLE: "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # one process, so that the calls of the backend can be counted here
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    prompt: Annotated[
        str | None, typer.Option(help="What to continue, instead of sixteen prompts at once.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 32,
    ours: Annotated[
        bool, typer.Option(help="Serve with these kernels, or with vLLM's own for comparison.")
    ] = True,
) -> None:
    """Let vLLM continue prompts with SmolLM2-135M-Instruct, all of them at once."""
    os.environ.update(_ENVIRONMENT)
    if not ours:
        os.environ[SWITCH_VARIABLE] = "0"
    from fa_triton.vllm.prompts import PROMPTS

    prompts: list[str] = [*PROMPTS] if prompt is None else [prompt]
    outputs, seconds = _generate(prompts, max_tokens)
    console = Console(highlight=False)
    for text, output in zip(prompts, outputs, strict=True):
        shown = text if len(text) < 60 else f"... {text[-56:]}"
        console.print(f"[bold]{shown}[/bold]{output.outputs[0].text.rstrip()}\n", soft_wrap=True)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    console.print(f"{tokens} tokens for {len(prompts)} prompts in {seconds:.1f} s")
    console.print(_who_attended())


def _generate(prompts: list[str], max_tokens: int) -> tuple[list[Any], float]:
    from vllm import LLM, SamplingParams

    from fa_triton.demo.model import model_copy
    from fa_triton.demo.packages import require_packages, weights_file

    require_packages()
    llm = LLM(
        str(model_copy(weights_file())),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        seed=0,
        disable_log_stats=True,
    )
    start = time.perf_counter()
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    return outputs, time.perf_counter() - start


def _who_attended() -> str:
    from fa_triton.vllm.recording import counts

    if not counts.forwards:
        return "attention: vLLM's own backend"
    return (
        f"attention: fa_triton, {counts.forwards} calls over {counts.batches} planned batches, "
        f"{counts.cache_updates} cache updates"
    )


if __name__ == "__main__":
    app()
