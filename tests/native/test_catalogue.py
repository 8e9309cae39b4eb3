"""Small kernels, each against torch."""

import pytest
import torch

from tests.native import kernels_dot, kernels_memory, kernels_pointwise, kernels_shape
from tests.native.catalogue import Case

CASES = [
    *kernels_pointwise.CASES,
    *kernels_shape.CASES,
    *kernels_memory.CASES,
    *kernels_dot.CASES,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel(case: Case) -> None:
    torch.manual_seed(0)
    case.make().check(case.kernel)
