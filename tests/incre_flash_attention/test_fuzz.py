"""Random calls over all arguments together, held to the error budget."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.incre_flash_attention.accuracy import faults_of
from tests.incre_flash_attention.batches import IncreBatch
from tests.incre_flash_attention.conftest import Attend
from tests.incre_flash_attention.examples import incre_batches
from tests.incre_flash_attention.planning import plan_for

EXAMPLES = os.environ.get("FA_TRITON_FUZZ_EXAMPLES")
FEW_EXAMPLES = 40
OTHER_DATA = 3


@pytest.mark.slow
@settings(
    max_examples=int(EXAMPLES or FEW_EXAMPLES),
    derandomize=EXAMPLES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    batch=incre_batches(longest=150, max_tokens=16, head_dims=(16, 64, 80), groups=(1, 3, 7)),
    cores=st.sampled_from((0, 0, 1, 7)),
)
def test_random_calls(
    attend: Attend, batch: IncreBatch, cores: int, nan_filled_memory: None
) -> None:
    """A limit that is missed must be missed with other data too: few elements scatter.

    With ``cores`` the plan is made outside of the call, for so many.
    """
    plan = plan_for(batch, max(*batch.kv_lens, 1), num_aic=cores) if cores else None
    for chance in range(OTHER_DATA + 1):
        call = replace(batch, seed=batch.seed + chance).call()
        faults = faults_of(*attend(**call, metadata=plan), call)
        if not faults:
            return
    pytest.fail("; ".join(faults))
