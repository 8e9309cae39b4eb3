"""One run of vLLM in a process of its own: ``python generate.py SPECIFICATION.json RESULT.json``.

The specification holds the arguments of ``LLM``, the prompts of each round and what to hide.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def hide_a_key() -> None:
    """Negative control: every sequence loses its last key but one."""
    from fa_triton.vllm import backend

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = own(self, *args, **kwargs)
        for part in metadata.batch.parts:
            object.__setattr__(part, "seq_lens", part.seq_lens - (part.seq_lens > 1).int())
        return metadata

    own = backend.FaTritonMetadataBuilder.build
    backend.FaTritonMetadataBuilder.build = build


def main() -> None:
    """Generate what the specification says."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    start = time.perf_counter()
    from vllm import LLM, SamplingParams

    if asked.get("hides_a_key"):
        hide_a_key()
    llm = LLM(**asked["engine"])
    ready = time.perf_counter()
    rounds = []
    for prompts in asked["rounds"]:
        sampling = SamplingParams(
            temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True, logprobs=1,
            detokenize=bool(asked.get("has_text")),
        )  # fmt: skip
        began = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        rounds.append(
            {
                "seconds": time.perf_counter() - began,
                "tokens": [list(o.outputs[0].token_ids) for o in outputs],
                "texts": [o.outputs[0].text for o in outputs],
                "cached": [o.num_cached_tokens for o in outputs],
                "logprobs": [
                    [one[t].logprob for one, t in zip(o.outputs[0].logprobs, o.outputs[0].token_ids)]
                    for o in outputs
                ],
            }
        )
    result = {"rounds": rounds, "start_s": ready - start}
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
