"""Environment variables of the vLLM adapter."""

from __future__ import annotations

import os

SWITCH_VARIABLE = "FA_TRITON_VLLM"
RECORD_VARIABLE = "FA_TRITON_VLLM_RECORD"


def is_switched_on() -> bool:
    """Whether ``FA_TRITON_VLLM=1`` asks vLLM to attend with these kernels.

    Raises:
        ValueError: The variable is neither 0 nor 1.
    """
    value = os.environ.get(SWITCH_VARIABLE, "0").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"`{SWITCH_VARIABLE}` must be 0 or 1, got {value!r}")
    return value == "1"


def record_file() -> str | None:
    """File that every process appends what it served to, see ``recording.py``; None for none."""
    return os.environ.get(RECORD_VARIABLE, "").strip() or None
