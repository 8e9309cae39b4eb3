"""Windows, soft caps, heads of 256 and block sizes: tokens equal to those of vLLM's backend."""

from __future__ import annotations

import pytest

from perf.vllm_models import SERVED, tiny_model
from tests.vllm.engine import equal_tokens, serve, spec

pytestmark = pytest.mark.vllm

BLOCKS = (16, 32, 128)
CASES = [(name, block) for name in SERVED for block in BLOCKS]


@pytest.fixture(scope="module")
def theirs(models, tmp_path_factory):
    runs = [spec(tiny_model(name, models)) for name in SERVED]
    served = serve(runs, tmp_path_factory.mktemp("theirs"), ours=False)
    return dict(zip(SERVED, served.results, strict=True))


@pytest.fixture(scope="module")
def ours(models, tmp_path_factory):
    runs = [spec(tiny_model(name, models), block_size=block) for name, block in CASES]
    hidden = [spec(tiny_model(name, models), block_size=32) for name in ("mistral", "gemma2")]
    runs += [one | {"hides_a_key": True} for one in hidden]
    return serve(runs, tmp_path_factory.mktemp("ours"), ours=True)


@pytest.mark.parametrize(("name", "block"), CASES)
def test_tokens_equal_those_of_vllm(ours, theirs, name, block):
    result = ours.results[CASES.index((name, block))]
    assert equal_tokens(result, theirs[name]) == (144, 144)
    # whole blocks of the shared prefixes come from the cache
    assert (sum(result["rounds"][1]["cached"]) > 0) == (block < 200)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_hidden_key_changes_the_text(ours, theirs, name):
    same, total = equal_tokens(
        ours.results[len(CASES) + ["mistral", "gemma2"].index(name)], theirs[name]
    )
    assert same < total / 2


def test_every_batch_was_planned_before_its_layers_ran(ours):
    batches = ours.batches()
    assert len(batches) > 100
    assert all(one["plans"] == one["parts"] for one in batches)
    assert ours.forwards() >= len(batches)
