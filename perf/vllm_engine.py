"""Both backends inside one process of vLLM, round by round: ``python -m perf.vllm_engine``.

Runs with the interpreter of vLLM's environment and prints one JSON object. Two engines of the same
model live side by side, one attends with these kernels, the other with vLLM's own backend, which
the option ``attention_backend`` asks for; their rounds alternate.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from perf.environment import provenance

OURS, THEIRS = "fa_triton", "vllm"


@dataclass
class Clock:
    """Seconds spent in the parts of attention, by part, per call."""

    calls: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def times(self, owner: type, method: str, part: str) -> None:
        """Measure every call of a method from now on."""
        own = getattr(owner, method)
        calls = self.calls[part]

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return own(*args, **kwargs)
            finally:
                calls.append(time.perf_counter() - start)

        setattr(owner, method, timed)

    def take(self) -> dict[str, list[float]]:
        """Calls since the last time."""
        taken = {part: list(calls) for part, calls in self.calls.items()}
        for calls in self.calls.values():
            calls.clear()
        return taken


def clock_of(backend: type) -> Clock:
    """Measure attention, cache update and description of batches of a backend."""
    clock = Clock()
    clock.times(backend.get_impl_cls(), "forward", "attention")  # type: ignore[attr-defined]
    clock.times(backend.get_impl_cls(), "do_kv_cache_update", "cache")  # type: ignore[attr-defined]
    clock.times(backend.get_builder_cls(), "build", "plan")  # type: ignore[attr-defined]
    return clock


def engines(asked: dict[str, Any]) -> dict[str, Any]:
    """Start both engines."""
    from vllm import LLM
    from vllm.platforms import current_platform

    made = {OURS: LLM(**asked["engine"])}
    # vLLM 0.32 fails when a second engine of a process registers its C++ stand-ins again
    name = "register_triton_kernel_overrides"
    with patch.object(type(current_platform), name, lambda self: None):
        made[THEIRS] = LLM(**asked["engine"], attention_backend="CPU_ATTN")
    return made


def prompts_of(asked: dict[str, Any], seed: int) -> list[Any]:
    """Prompts that no round had before, so that nothing comes from the prefix cache."""
    if "texts" in asked:
        return [f"{seed}. {text}" for text in asked["texts"]]
    generator = random.Random(seed)
    return [
        {"prompt_token_ids": [generator.randrange(3, 1000) for _ in range(length)]}
        for length in asked["lengths"]
    ]


def one_round(llm: Any, prompts: list[Any], asked: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Generate once and say how long everything took."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False
    )
    clock.take()
    start, cpu = time.perf_counter(), time.process_time()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    calls = clock.take()
    return {
        "wall_s": seconds,
        "cpu_s": cpu_seconds,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "steps": len(calls["plan"]),
        "attention_s": sum(calls["attention"]),
        "cache_s": sum(calls["cache"]),
        "plan_s": sum(calls["plan"]),
        "attention_call_us": 1e6 * statistics.median(calls["attention"]),
        "cache_call_us": 1e6 * statistics.median(calls["cache"]),
        "plan_us": 1e6 * statistics.median(calls["plan"]),
    }


def main() -> None:
    """Measure what the first argument asks for, a JSON object."""
    asked = json.loads(sys.argv[1])
    made = engines(asked)
    import vllm
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    from fa_triton.vllm.backend import FaTritonBackend

    clocks = {OURS: clock_of(FaTritonBackend), THEIRS: clock_of(CPUAttentionBackend)}
    rounds: dict[str, list[dict[str, Any]]] = {OURS: [], THEIRS: []}
    same = total = 0
    for seed in range(-asked["warm_up"], asked["rounds"]):
        prompts = prompts_of(asked, seed)
        done = {}
        for name in sorted(made, reverse=bool(seed % 2)):
            done[name] = one_round(made[name], prompts, asked, clocks[name])
        tokens = [done[name].pop("tokens") for name in (OURS, THEIRS)]
        pairs = [p for a, b in zip(*tokens, strict=True) for p in zip(a, b, strict=True)]
        same, total = same + sum(a == b for a, b in pairs), total + len(pairs)
        if seed >= 0:
            for name, line in done.items():
                rounds[name].append(line)
    tokens_of_round = asked["max_tokens"] * len(prompts_of(asked, 0))
    origin = provenance(asked["command"])
    origin["toolchain"] = {"vllm": vllm.__version__, **origin["toolchain"]}  # type: ignore[dict-item]
    result = {
        "rounds": rounds,
        "tokens": tokens_of_round,
        "same": same,
        "compared": total,
        "origin": origin,
    }
    with open(asked["output"], "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    os.environ.setdefault("FA_TRITON_VLLM", "1")
    main()
