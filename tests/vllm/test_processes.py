"""Engine core and worker in processes of their own, and what is handed back to the platform."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

from perf.vllm_models import tiny_model  # noqa: E402
from tests.vllm.engine import equal_tokens, serve, spec  # noqa: E402


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
