"""The code of docs/kda_layer.md runs as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "kda_layer.md"


def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), names)
    assert capsys.readouterr().out == "torch.Size([100, 4, 128]) torch.Size([2, 4, 128])\n"
    for name in ("prompt", "token", "out"):
        result = names[name]
        assert isinstance(result, torch.Tensor)
        assert torch.isfinite(result).all()
