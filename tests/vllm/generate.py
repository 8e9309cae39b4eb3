"""Runs of vLLM in one process: ``python generate.py SPECIFICATION.json RESULT.json``.

A specification is a list of runs, each with the arguments of ``LLM``, the prompts of its rounds and
whether a key is hidden.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch


def hidden_key() -> Any:
    """Negative control: every sequence loses its own last key."""
    from fa_triton.vllm.backend import FaTritonMetadataBuilder

    own = FaTritonMetadataBuilder.build

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = own(self, *args, **kwargs)
        for part in metadata.batch.parts:
            object.__setattr__(part, "seq_lens", part.seq_lens - (part.seq_lens > 1).int())
        return metadata

    return patch.object(FaTritonMetadataBuilder, "build", build)


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, generate, and stop it."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    start = time.perf_counter()
    llm = LLM(**asked["engine"])
    ready = time.perf_counter()
    sampling = SamplingParams(
        temperature=0,
        max_tokens=asked["max_tokens"],
        ignore_eos=True,
        logprobs=1,
        detokenize=asked["has_text"],
    )
    rounds = []
    for prompts in asked["rounds"]:
        began = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        chosen = [output.outputs[0] for output in outputs]
        rounds.append(
            {
                "seconds": time.perf_counter() - began,
                "tokens": [list(one.token_ids) for one in chosen],
                "texts": [one.text for one in chosen],
                "cached": [output.num_cached_tokens for output in outputs],
                "logprobs": [
                    [
                        at[token].logprob
                        for at, token in zip(one.logprobs, one.token_ids, strict=True)
                    ]
                    for one in chosen
                ],
            }
        )
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    return {"rounds": rounds, "start_s": ready - start}


def registered_kernels() -> Any:
    """Keep what the first engine of a process registered; vLLM 0.32 fails on a second pass."""
    from vllm.platforms import current_platform

    name = "register_triton_kernel_overrides"
    return patch.object(type(current_platform), name, lambda self: None)


def main() -> None:
    """Run one engine after the other."""
    results: list[dict[str, Any]] = []
    for asked in json.loads(Path(sys.argv[1]).read_text()):
        with ExitStack() as changes:
            if results:
                changes.enter_context(registered_kernels())
            if asked["hides_a_key"]:
                changes.enter_context(hidden_key())
            results.append(run(asked))
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
