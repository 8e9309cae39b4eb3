"""The safetensors copy of the dequantised weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fa_triton.demo.model as model_module
from fa_triton.demo.model import has_copy, load_model
from fa_triton.native.cache import CACHE_VARIABLE

_CPU = torch.device("cpu")


class _Saved:
    """Stands in for a model and for a tokenizer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def save_pretrained(self, folder: Path) -> None:
        (Path(folder) / self.name).write_text("saved")


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what is loaded: the GGUF file or a copy."""
    seen: list[str] = []

    def load(dtype: torch.dtype, device: torch.device, folder: Path, **source: Any) -> tuple:
        seen.append("gguf" if source else "copy")
        if not source and not (folder / "model").exists():
            raise OSError("no model in the copy")
        return _Saved("model"), _Saved("tokenizer")

    monkeypatch.setattr(model_module, "_load", load)
    return seen


def _folders(weights: Path) -> list[Path]:
    return list((weights.parent / "cache" / "models").iterdir())


def test_second_start_reads_the_copy(weights: Path, sources: list[str]) -> None:
    assert not has_copy(weights)
    assert not load_model(weights, torch.float32, _CPU).from_copy
    assert has_copy(weights)
    assert load_model(weights, torch.bfloat16, _CPU).from_copy
    assert sources == ["gguf", "copy", "copy"]
    assert len(_folders(weights)) == 1


def test_other_weights_have_another_copy(weights: Path, sources: list[str]) -> None:
    load_model(weights, torch.float32, _CPU)
    weights.write_bytes(b"other weights")
    assert not has_copy(weights)


def test_damaged_copy_is_made_again(weights: Path, sources: list[str]) -> None:
    load_model(weights, torch.float32, _CPU)
    (_folders(weights)[0] / "model").unlink()
    assert not load_model(weights, torch.float32, _CPU).from_copy
    assert sources == ["gguf", "copy", "copy", "gguf", "copy"]
    assert load_model(weights, torch.float32, _CPU).from_copy


def test_interrupted_writing_leaves_nothing(
    weights: Path, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: _Saved, folder: Path) -> None:
        (Path(folder) / "half").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(_Saved, "save_pretrained", fail)
    with pytest.raises(KeyboardInterrupt):
        load_model(weights, torch.float32, _CPU)
    assert not has_copy(weights)
    assert _folders(weights) == []


def test_cache_that_cannot_be_written(
    weights: Path, sources: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (weights.parent / "cache").write_text("a file where the folder should be")
    loaded = load_model(weights, torch.float32, _CPU)
    assert not loaded.from_copy
    assert sources == ["gguf"]
    assert "no copy of the weights can be kept" in caplog.text


def test_another_process_was_faster(
    weights: Path, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = _Saved.save_pretrained

    def save_after_the_other(self: _Saved, folder: Path) -> None:
        save(self, folder)
        theirs = model_module._copy_folder(weights)
        theirs.mkdir(exist_ok=True)
        save(self, theirs)

    monkeypatch.setattr(_Saved, "save_pretrained", save_after_the_other)
    load_model(weights, torch.float32, _CPU)
    assert len(_folders(weights)) == 1
