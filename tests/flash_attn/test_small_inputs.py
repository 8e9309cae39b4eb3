"""The kernels have every property that small inputs ask of an implementation."""

from __future__ import annotations

import pytest
import torch

from fa_triton import flash_attn
from tests.small_inputs import SMALL_INPUTS, SmallInput

# the dtypes run the same kernels: one of them is enough for the quick tests
DTYPES = [
    torch.float16,
    pytest.param(torch.bfloat16, marks=pytest.mark.slow),
    pytest.param(torch.float32, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SMALL_INPUTS, ids=str)
def test_small_input(case: SmallInput, dtype: torch.dtype, nan_filled_memory: None) -> None:
    case(flash_attn, dtype)
