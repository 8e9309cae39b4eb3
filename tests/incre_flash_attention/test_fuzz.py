"""Random calls over all arguments together, held to the error budget."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings

from tests.incre_flash_attention.accuracy import assert_accurate
from tests.incre_flash_attention.batches import IncreBatch
from tests.incre_flash_attention.conftest import Attend
from tests.incre_flash_attention.examples import incre_batches

EXAMPLES = os.environ.get("FA_TRITON_FUZZ_EXAMPLES")
FEW_EXAMPLES = 40


@pytest.mark.slow
@settings(
    max_examples=int(EXAMPLES or FEW_EXAMPLES),
    derandomize=EXAMPLES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(batch=incre_batches(longest=150, max_tokens=16, head_dims=(16, 64, 80), groups=(1, 3, 7)))
def test_random_calls(attend: Attend, batch: IncreBatch, nan_filled_memory: None) -> None:
    call = batch.call()
    out, lse = attend(**call)
    assert_accurate(out, lse, call)
