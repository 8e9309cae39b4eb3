"""The kernels have every property that small inputs ask of an implementation."""

from __future__ import annotations

import pytest
import torch

from fa_triton import flash_attn
from tests.small_inputs import SMALL_INPUTS, SmallInput


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", SMALL_INPUTS, ids=str)
def test_small_input(case: SmallInput, dtype: torch.dtype, nan_filled_memory: None) -> None:
    case(flash_attn, dtype)
