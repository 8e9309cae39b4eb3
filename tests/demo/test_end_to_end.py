"""The real model generates text through the kernels, compared with torch SDPA."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from fa_triton.demo.packages import require_packages
from fa_triton.demo.prompts import DEFAULT_PROMPT


def _have_packages() -> bool:
    try:
        require_packages()
    except ImportError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _have_packages(), reason="needs the packages of the demo"),
]


def _demo(prompts: list[str], dtype: str, max_new_tokens: int) -> tuple[bool, str]:
    from fa_triton.demo.run import DemoOptions, run_demo

    out = Console(file=io.StringIO(), width=120)
    options = DemoOptions(prompts, max_new_tokens, dtype, torch.device("cpu"))
    all_equal = run_demo(options, out, Console(file=io.StringIO()))
    assert isinstance(out.file, io.StringIO)
    return all_equal, out.file.getvalue()


def test_default_prompt() -> None:
    all_equal, text = _demo([DEFAULT_PROMPT], "float32", 16)
    assert all_equal
    assert "The capital of France is Paris." in text
    assert "8 of 8" in text
    assert "cpu, native" in text


def test_batch_of_different_lengths() -> None:
    prompts = [
        "What is the capital of France?",
        "Hi!",
        "Write one sentence about the sea, and then tell me what two plus three is.",
    ]
    all_equal, text = _demo(prompts, "float32", 12)
    assert all_equal
    assert "The capital of France is Paris." in text
    for prompt in prompts:
        assert prompt in text


def test_bfloat16_reports_the_difference() -> None:
    _, text = _demo([DEFAULT_PROMPT], "bfloat16", 12)
    assert "fa_triton and torch SDPA, bfloat16" in text
    assert "largest logit difference" in text
    assert "Paris" in text
