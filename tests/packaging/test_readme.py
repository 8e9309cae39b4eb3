"""What the README shows works, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.forked
def test_first_example_runs(capsys):
    pytest.importorskip("llvmlite")
    (example,) = re.findall(r"## Ten lines\n\n```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed == "torch.Size([356, 8, 128]) torch.Size([8, 356])\n"


@pytest.mark.forked
def test_example_of_a_paged_cache_runs():
    pytest.importorskip("llvmlite")
    beginning = README[: README.index("## Incremental attention")]
    examples = re.findall(r"```python\n(.*?)```", beginning, re.DOTALL)
    (example,) = (text for text in examples if "block_table" in text)
    names = {}
    imports = "import torch\nfrom fa_triton import flash_attn\n"
    exec(compile(imports + example, "README.md", "exec"), names)
    assert names["out"].shape == (2, 1, 8, 128)
    assert names["out"].isfinite().all()


@pytest.mark.forked
def test_example_of_incremental_attention_runs(capsys):
    pytest.importorskip("llvmlite")
    (example,) = re.findall(r"## Incremental attention\n.*?```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([2, 1, 1024])\n"


@pytest.mark.forked
def test_example_of_linear_attention_runs(capsys):
    pytest.importorskip("llvmlite")
    (example,) = re.findall(r"## Linear attention\n.*?```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed == "torch.Size([1, 300, 4, 128]) torch.Size([2, 4, 128, 128])\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    local = [t for t in targets if "://" not in t]
    assert not [t for t in local if not (page.parent / t).exists()]


def test_make_targets_of_the_documents_exist():
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {m for page in PAGES for m in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named <= rules
