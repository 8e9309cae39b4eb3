"""Fixtures of the parts that every version of vLLM shares."""

from __future__ import annotations

import pytest

from fa_triton.native.kernel import BoundLaunch


@pytest.fixture
def repeats(monkeypatch):
    """What repetitions of launches returned, in order, those of :mod:`fa_triton.attention` too."""
    results = []
    launch = BoundLaunch.launch

    def recorded(self, addresses):
        results.append(launch(self, addresses))
        return results[-1]

    monkeypatch.setattr(BoundLaunch, "launch", recorded)
    return results
