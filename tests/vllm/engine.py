"""Specifications of engine runs, and the processes that run them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fa_triton.vllm.settings import RECORD_VARIABLE, SWITCH_VARIABLE

GENERATE = Path(__file__).with_name("generate.py")
PROMPT_LENGTHS = (5, 17, 33, 100, 200)
MAX_TOKENS = 16
TIMEOUT_S = 1500
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "INFO",
}


def random_prompts(lengths: tuple[int, ...] = PROMPT_LENGTHS) -> list[list[dict[str, Any]]]:
    """Two rounds; the prompts of the second start as the long ones of the first.

    So the second round hits the prefix cache and prefills from the middle of a sequence.
    """
    generator = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [generator.randrange(3, 1000) for _ in range(count)]

    first = [tokens(length) for length in lengths]
    second = [prompt[:-7] + tokens(20) for prompt in first if len(prompt) > 32]
    second.append(first[-1])
    return [[{"prompt_token_ids": prompt} for prompt in one] for one in (first, second)]


def spec(model: Path, **engine: Any) -> dict[str, Any]:
    """A run of a tiny model whose prefill is cut into chunks of 64 tokens."""
    return {
        "engine": {
            "model": str(model),
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 512,
            "enable_chunked_prefill": True,
            "enable_prefix_caching": True,
            "max_num_batched_tokens": 64,
            "max_num_seqs": 8,
            "seed": 0,
            "disable_log_stats": True,
            **engine,
        },
        "rounds": random_prompts(),
        "max_tokens": MAX_TOKENS,
        "has_text": False,
        "hides_a_key": False,
    }


@dataclass
class Served:
    """What a process generated.

    Attributes:
        results: One per specification.
        record: Lines of ``FA_TRITON_VLLM_RECORD``, empty where our backend never ran.
        log: What the process wrote.
    """

    results: list[dict[str, Any]]
    record: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""

    def forwards(self) -> int:
        """Layers that our backend attended, in all processes."""
        last = {line["pid"]: line["forwards"] for line in self.record}
        return sum(last.values())

    def batches(self) -> list[dict[str, Any]]:
        """Batches that our builder planned."""
        return [line for line in self.record if line["kind"] == "batch"]


def serve(
    specs: list[dict[str, Any]],
    folder: Path,
    *,
    ours: bool,
    processes: bool = False,
    **environment: str,
) -> Served:
    """Run engines one after the other in a fresh process.

    Args:
        specs: The runs.
        folder: For files.
        ours: Whether the backend is switched on.
        processes: Whether the engine core and its worker are processes of their own.
        **environment: More variables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, result, record = (
        folder / name for name in ("asked.json", "result.json", "record.jsonl")
    )
    asked.write_text(json.dumps(specs))
    env = os.environ | ENVIRONMENT | environment
    env |= {
        SWITCH_VARIABLE: "1" if ours else "0",
        RECORD_VARIABLE: str(record),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if processes else "0",
    }
    done = subprocess.run(
        [sys.executable, str(GENERATE), str(asked), str(result)],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    log = done.stdout + done.stderr
    if done.returncode:
        told = "\n".join(line for line in log.splitlines() if "fa_triton: " in line)
        raise RuntimeError(f"the engine ended with {done.returncode}: {told}\n{log[-6000:]}")
    lines = record.read_text().splitlines() if record.is_file() else []
    return Served(json.loads(result.read_text()), [json.loads(line) for line in lines], log)


def tokens_of(result: dict[str, Any]) -> list[list[int]]:
    """Tokens of all prompts of all rounds."""
    return [tokens for one in result["rounds"] for tokens in one["tokens"]]


def equal_tokens(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[int, int]:
    """Tokens that agree before the first one that differs, per prompt, and all tokens."""
    same = total = 0
    for mine, other in zip(tokens_of(ours), tokens_of(theirs), strict=True):
        agree = [a == b for a, b in zip(mine, other, strict=True)]
        same += agree.index(False) if False in agree else len(agree)
        total += len(agree)
    return same, total
