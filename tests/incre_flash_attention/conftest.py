"""The implementations that the tests of this folder run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fa_triton.incremental import incre_flash_attention

# Values of FA_TRITON_CPU.
IMPLEMENTATIONS = ("native", "reference")

Attend = Callable[..., Any]


@pytest.fixture(params=IMPLEMENTATIONS)
def attend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Attend:
    """Call ``incre_flash_attention``, answered by one implementation."""
    monkeypatch.setenv("FA_TRITON_CPU", request.param)
    return incre_flash_attention
