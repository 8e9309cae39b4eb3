"""What this process served, for tests and measurements: ``FA_TRITON_VLLM_RECORD=FILE``.

Every process appends one JSON line per batch: its number, the lengths, how long planning took, and
how often attention and cache update ran so far. A line at the end of the process has the totals.
"""

from __future__ import annotations

import atexit
import json
import os
from dataclasses import asdict, dataclass

import numpy as np

from fa_triton.vllm.batch import AttnBatch
from fa_triton.vllm.settings import record_file


@dataclass
class Counts:
    """Calls of this process so far."""

    batches: int = 0
    forwards: int = 0
    cache_updates: int = 0


counts = Counts()


class Recorder:
    """Appends what a builder made to a file.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        atexit.register(self._append, {"kind": "exit"})

    @staticmethod
    def of_environment() -> Recorder | None:
        """The recorder that ``FA_TRITON_VLLM_RECORD`` asks for."""
        path = record_file()
        return Recorder(path) if path else None

    def batch(
        self, batch: AttnBatch, query_start_loc: np.ndarray, seq_lens: np.ndarray, seconds: float
    ) -> None:
        """Append a batch and how long it took to describe and plan it."""
        self._append(
            {
                "kind": "batch",
                "q": np.diff(query_start_loc).tolist(),
                "kv": seq_lens.tolist(),
                "parts": len(batch.parts),
                "plans": sum(len(part.plans) for part in batch.parts),
                "plan_us": round(1e6 * seconds, 1),
            }
        )

    def _append(self, line: dict[str, object]) -> None:
        text = json.dumps({**line, "pid": os.getpid(), **asdict(counts)})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
