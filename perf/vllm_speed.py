"""``python -m perf.run vllm``: tokens per second inside vLLM, with these kernels and with its own.

Both backends run in one process of vLLM's environment, see ``vllm_engine.py``; this file starts one
such process per model and makes the table of ``docs/vllm.md``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from perf.environment import ROOT, command_line
from perf.plot import fill_readme

RESULTS = ROOT / "perf" / "results" / "vllm.jsonl"
DOCUMENT = ROOT / "docs" / "vllm.md"
MARKERS = "<!-- vllm: begin -->", "<!-- vllm: end -->"
OWN_ENVIRONMENT = ROOT / ".venv-vllm" / "bin" / "python"
OURS, THEIRS = "fa_triton", "vllm"
TEXT_MODEL = "smollm2"
TINY_MODELS = ("llama", "mistral", "gemma2")
GOAL = 1.2

_ENVIRONMENT = {
    "FA_TRITON_VLLM": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
# Runs in vLLM's environment, which has transformers and the weights.
_MODEL_FOLDER = """
import sys
from pathlib import Path
if sys.argv[1] == "smollm2":
    from fa_triton.demo.model import model_copy
    from fa_triton.demo.packages import weights_file
    folder = model_copy(weights_file())
else:
    from perf.vllm_models import tiny_model
    folder = tiny_model(sys.argv[1], Path(sys.argv[2]))
print(folder)
"""


def command(
    model: Annotated[list[str] | None, typer.Option(help="Only these models.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of each backend.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine.")] = 1,
    output: Annotated[Path, typer.Option(help="JSONL file, replaced.")] = RESULTS,
    document: Annotated[
        Path | None, typer.Option(help="Page whose table is renewed if all models ran.")
    ] = DOCUMENT,
) -> None:
    """Compare with vLLM's own CPU backend, end to end, float32, prompts served together."""
    known = (*TINY_MODELS, TEXT_MODEL)
    models = model or list(known)
    for name in models:
        if name not in known:
            raise typer.BadParameter(f"{name!r} must be one of {', '.join(known)}")
    console = Console(highlight=False)
    lines = []
    with tempfile.TemporaryDirectory(prefix="fa_triton_perf_") as folder:
        for name in models:
            measured = measure(name, Path(folder), rounds=rounds, threads=threads)
            lines.append(summary(name, measured, threads) | measured["origin"])
            console.print(describe(lines[-1]))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if document is not None and set(models) == set(known):
        fill_readme(table(lines), document, MARKERS)
    console.print(f"{len(lines)} results in {output}")


def engine_python() -> str:
    """Interpreter of an environment that has vLLM."""
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    if OWN_ENVIRONMENT.is_file():
        return str(OWN_ENVIRONMENT)
    raise typer.BadParameter("vLLM must be installed to be measured; run `make vllm-install`")


def measure(name: str, folder: Path, *, rounds: int, threads: int) -> dict[str, Any]:
    """Serve a model with both backends and return what ``vllm_engine.py`` wrote."""
    from fa_triton.vllm.prompts import PROMPTS

    python = engine_python()
    env = os.environ | _ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)}
    made = subprocess.run(
        [python, "-c", _MODEL_FOLDER, name, str(folder)],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    engine: dict[str, Any] = {
        "model": made.stdout.split()[-1],
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 16,
        "seed": 0,
        "disable_log_stats": True,
    }
    asked: dict[str, Any] = {"rounds": rounds, "warm_up": 1, "engine": engine}
    asked["command"] = command_line()
    if name == TEXT_MODEL:
        asked |= {"texts": list(PROMPTS), "max_tokens": 24}
    else:
        engine["skip_tokenizer_init"] = True
        asked |= {"lengths": [5, 17, 33, 100, 200], "max_tokens": 64}
    asked["output"] = str(folder / f"{name}.json")
    subprocess.run(
        [python, "-m", "perf.vllm_engine", json.dumps(asked)], cwd=ROOT, env=env, check=True
    )
    return json.loads(Path(asked["output"]).read_text())


def summary(name: str, measured: dict[str, Any], threads: int) -> dict[str, Any]:
    """The best round and medians of its parts; CPU time on one thread, else elapsed time."""
    measure_of = "cpu_s" if threads == 1 else "wall_s"
    parts: dict[str, dict[str, float]] = {}
    for backend in (OURS, THEIRS):
        rounds = measured["rounds"][backend]
        parts[backend] = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        parts[backend]["best_s"] = min(one[measure_of] for one in rounds)
        parts[backend]["tokens_per_s"] = measured["tokens"] / parts[backend]["best_s"]
        spent = sum(parts[backend][key] for key in ("attention_s", "cache_s", "plan_s"))
        parts[backend]["attention_share"] = spent / parts[backend]["wall_s"]
    return {
        "kind": "vllm",
        "model": name,
        "threads": threads,
        "measure": measure_of,
        "ratio": round(parts[OURS]["best_s"] / parts[THEIRS]["best_s"], 4),
        "same_tokens": measured["same"],
        "compared_tokens": measured["compared"],
        "backends": {
            backend: {key: round(value, 6) for key, value in values.items()}
            for backend, values in parts.items()
        },
    }


def describe(line: dict[str, Any]) -> str:
    """One line for the terminal."""
    ours, theirs = (line["backends"][name] for name in (OURS, THEIRS))
    return (
        f"{line['model']:8} {line['ratio']:.3f} x vLLM's backend, {ours['tokens_per_s']:.0f} and "
        f"{theirs['tokens_per_s']:.0f} tokens/s, attention {ours['attention_share']:.0%} and "
        f"{theirs['attention_share']:.0%}, plan {ours['plan_us']:.0f} us per step, tokens equal "
        f"{line['same_tokens']}/{line['compared_tokens']}"
    )


def table(lines: list[dict[str, Any]]) -> str:
    """The document's table and where its figures come from."""
    rows = [
        "| model | our time / vLLM's | tokens/s, ours | vLLM's | attention's share, ours | vLLM's |"
        " one call, us, ours | vLLM's | batch described and planned, us, ours | vLLM's |"
        " equal tokens |",
        "|---" * 11 + "|",
    ]
    for line in lines:
        ours, theirs = (line["backends"][name] for name in (OURS, THEIRS))
        rows.append(
            f"| {line['model']} | {line['ratio']:.2f} | {ours['tokens_per_s']:.0f} "
            f"| {theirs['tokens_per_s']:.0f} | {ours['attention_share']:.0%} "
            f"| {theirs['attention_share']:.0%} | {ours['attention_call_us']:.0f} "
            f"| {theirs['attention_call_us']:.0f} | {ours['plan_us']:.0f} "
            f"| {theirs['plan_us']:.0f} | {line['same_tokens']} of {line['compared_tokens']} |"
        )
    first = lines[0]
    versions = ", ".join(f"{name} {v}" for name, v in first["toolchain"].items() if v)
    rows.append(
        f"\nMeasured {first['date']} by `{first['command']}` at commit {first['commit']} on "
        f"{first['device']}; {versions}."
    )
    return "\n".join(rows)
