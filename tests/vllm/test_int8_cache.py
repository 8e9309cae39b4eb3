"""A cache of eight bits in the engine, next to one in bfloat16."""

from __future__ import annotations

import pytest

from perf.vllm_models import tiny_model
from tests.vllm.engine import serve, spec

pytestmark = pytest.mark.vllm

INT8 = {"kv_cache_dtype": "int8_per_token_head"}


def test_close_to_a_cache_in_16_bits(models, tmp_path):
    model = tiny_model("llama", models)
    plain = spec(model, dtype="bfloat16", block_size=32)
    eight = spec(model, dtype="bfloat16", block_size=32, **INT8)
    served = serve([plain, eight], tmp_path, ours=True)
    batches = served.batches()
    assert served.forwards() == 2 * len(batches)
    assert "handed back" not in served.log
    for one, other in zip(*(result["rounds"] for result in served.results), strict=True):
        for a, b in zip(one["logprobs"], other["logprobs"], strict=True):
            # the first token of a prompt, which nothing before could have led astray
            assert a[0] == pytest.approx(b[0], abs=0.25)
        same = [a[0] == b[0] for a, b in zip(one["tokens"], other["tokens"], strict=True)]
        assert sum(same) >= len(same) - 1


def test_float32_is_handed_back_with_the_reason(models, tmp_path):
    run = spec(tiny_model("llama", models), block_size=32, **INT8)
    with pytest.raises(RuntimeError, match="a cache of eight bits needs activations in 16 bits"):
        serve([run], tmp_path, ours=True)
