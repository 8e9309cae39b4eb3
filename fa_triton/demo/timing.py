"""Time the attention of a model, ours and transformers' own by the same wrapper."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface


@dataclass
class AttentionTime:
    """Time spent in attention functions.

    Attributes:
        calls: Number of calls: layers x steps.
        seconds: Wall time of the calls, until the device is done.
    """

    calls: int = 0
    seconds: float = 0.0


@contextlib.contextmanager
def timed_attention(name: str) -> Iterator[AttentionTime]:
    """Time every call of a registered attention function within the block.

    Args:
        name: Its ``attn_implementation``.
    """
    interface = AttentionInterface()
    original: Callable[..., Any] = interface[name]
    spent = AttentionTime()

    def timed(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _wait(query.device)
        start = time.perf_counter()
        result = original(module, query, *args, **kwargs)
        _wait(query.device)
        spent.seconds += time.perf_counter() - start
        spent.calls += 1
        return result

    AttentionInterface.register(name, timed)
    try:
        yield spent
    finally:
        AttentionInterface.register(name, original)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
