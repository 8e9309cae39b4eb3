"""The short proof: a tiny Llama in one process, its negative control, and what is handed back."""

from __future__ import annotations

import pytest

from perf.vllm_models import tiny_model
from tests.vllm.engine import equal_tokens, serve, spec

pytestmark = pytest.mark.vllm

LAYERS = 2


@pytest.fixture(scope="module")
def theirs(models, tmp_path_factory):
    llama = spec(tiny_model("llama", models))
    return serve([llama], tmp_path_factory.mktemp("theirs"), ours=False)


@pytest.fixture(scope="module")
def ours(models, tmp_path_factory):
    model = tiny_model("llama", models)
    hidden = spec(model, block_size=32) | {"hides_a_key": True}
    runs = [spec(model, block_size=32), hidden]
    return serve(runs, tmp_path_factory.mktemp("ours"), ours=True)


def test_nothing_happens_unless_switched_on(theirs):
    assert theirs.record == []
    assert "fa_triton" not in theirs.log.replace("fa_triton -> fa_triton.vllm", "")


def test_tokens_equal_those_of_vllm(ours, theirs):
    assert equal_tokens(ours.results[0], theirs.results[0]) == (144, 144)
    for mine, other in zip(ours.results[0]["rounds"], theirs.results[0]["rounds"], strict=True):
        for a, b in zip(mine["logprobs"], other["logprobs"], strict=True):
            assert a == pytest.approx(b, abs=2e-4)


def test_hidden_key_changes_the_text(ours, theirs):
    same, total = equal_tokens(ours.results[1], theirs.results[0])
    assert total == 144
    assert same < total / 2


def test_our_backend_attended_every_layer_of_every_batch(ours):
    batches = ours.batches()
    assert len(batches) > 40
    assert ours.forwards() == LAYERS * len(batches)
    assert ours.record[-1]["cache_updates"] == ours.forwards()
    assert "attention is served by fa_triton.vllm.backend.FaTritonBackend" in ours.log


def test_batches_were_of_every_kind(ours):
    batches = ours.batches()
    kinds = {(min(one["q"]) == 1, max(one["q"]) > 1) for one in batches}
    assert kinds == {(True, False), (False, True), (True, True)}
    assert any(1 < q < kv for one in batches for q, kv in zip(one["q"], one["kv"], strict=True)), (
        "no chunk of a prompt"
    )
    assert all(one["plans"] == one["parts"] for one in batches)
    hits = ours.results[0]["rounds"][1]["cached"]
    assert sum(hits) > 200
