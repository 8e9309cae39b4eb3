"""Several processes, speculative decoding, and what is handed back to the platform."""

from __future__ import annotations

import pytest

from perf.vllm_models import tiny_model
from tests.vllm.engine import equal_tokens, serve, spec

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def theirs(models, tmp_path_factory):
    runs = [spec(tiny_model(name, models)) for name in ("llama", "wide")]
    return serve(runs, tmp_path_factory.mktemp("theirs"), ours=False)


def test_multi_process(models, tmp_path, theirs):
    runs = [spec(tiny_model("llama", models), block_size=32)]
    served = serve(runs, tmp_path, ours=True, processes=True)
    assert equal_tokens(served.results[0], theirs.results[0]) == (144, 144)
    assert served.forwards() > 0
    assert {line["pid"] for line in served.batches()} != set()


def test_speculative_decoding(models, tmp_path):
    """Queries of up to four tokens: drafts repeat what the prompt says after equal tokens."""
    run = spec(tiny_model("llama", models), block_size=32)
    pattern = [5, 6, 7, 8, 9, 10, 11, 12]
    run["rounds"] = [[{"prompt_token_ids": pattern * times} for times in (2, 4, 6)]]
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    guessing = run | {"engine": run["engine"] | {"speculative_config": drafts}}
    ours = serve([run, guessing], tmp_path, ours=True)
    assert equal_tokens(ours.results[1], ours.results[0]) == (48, 48)
    short = [q for one in ours.batches() for q in one["q"] if 1 < q <= 4]
    assert short, "no draft was verified"


def test_handed_back_with_the_reason(models, tmp_path, theirs):
    runs = [
        spec(tiny_model("wide", models)),
        spec(tiny_model("llama", models), attention_backend="CPU_ATTN"),
    ]
    served = serve(runs, tmp_path, ours=True)
    assert equal_tokens(served.results[0], theirs.results[1]) == (144, 144)
    assert equal_tokens(served.results[1], theirs.results[0]) == (144, 144)
    assert served.forwards() == 0
    own = "attention is handed back to vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
    for reason in (
        "the head size must be a multiple of 8 up to 256, got 512",
        "the engine was asked for the backend CPU_ATTN",
    ):
        assert served.log.count(f"{own}: {reason}") == 1
