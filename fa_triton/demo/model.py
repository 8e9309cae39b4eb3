"""Load the model: dequantised from GGUF once, from a safetensors copy afterwards."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from fa_triton.native.cache import cache_directory

logger = logging.getLogger(__name__)

# Changes when copies written by older code must not be read any more.
_COPY_FORMAT = 1
# The weights are exact in float32, so one copy serves every dtype.
_COPY_DTYPE = torch.float32


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to generate.

    Attributes:
        model: The causal language model, in evaluation mode.
        tokenizer: Its tokenizer, padding on the left.
        from_copy: Whether the safetensors copy of an earlier run was used.
    """

    model: Any
    tokenizer: Any
    from_copy: bool


def has_copy(weights: Path) -> bool:
    """Tell whether an earlier run left a copy, so that loading takes about a second."""
    return _copy_folder(weights).is_dir()


def load_model(weights: Path, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """Load the model, through a copy in the cache directory wherever possible.

    Args:
        weights: The GGUF file.
        dtype: Dtype of the weights and activations.
        device: Where to put it.
    """
    folder = _copy_folder(weights)
    if folder.is_dir():
        try:
            return LoadedModel(*_load(dtype, device, folder), from_copy=True)
        except (OSError, ValueError, SafetensorError) as error:
            logger.warning("the copy in %s is damaged and is made again: %s", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
    try:
        _write_copy(weights, folder)
    except OSError as error:
        logger.warning("no copy of the weights can be kept in %s: %s", folder, error)
        loaded = _load(dtype, device, weights.parent, gguf_file=weights.name)
        return LoadedModel(*loaded, from_copy=False)
    return LoadedModel(*_load(dtype, device, folder), from_copy=False)


def model_copy(weights: Path) -> Path:
    """Folder with the model in float32 as safetensors, and its tokenizer; written once.

    Args:
        weights: The GGUF file.

    Raises:
        OSError: The cache directory cannot be written.
    """
    folder = _copy_folder(weights)
    if not folder.is_dir():
        _write_copy(weights, folder)
    return folder


def _load(dtype: torch.dtype, device: torch.device, folder: Path, **source: Any) -> tuple[Any, Any]:
    # Loading with `dtype`, not converting later: that would round the rotary frequencies too.
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **source)
    # The tokenizer of the GGUF file pads on the right, which a decoder cannot continue.
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left", **source)
    return model.to(device).eval(), tokenizer


def _copy_folder(weights: Path) -> Path:
    """Where the copy of exactly these weights, made by exactly these versions, belongs."""
    digest = hashlib.sha256()
    with weights.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    versions = [f"{name}={importlib.metadata.version(name)}" for name in ("transformers", "gguf")]
    digest.update(" ".join([*versions, str(_COPY_DTYPE), str(_COPY_FORMAT)]).encode())
    return cache_directory() / "models" / f"{weights.stem}-{digest.hexdigest()[:16]}"


def _write_copy(weights: Path, folder: Path) -> None:
    """Dequantise the weights and keep them; readers see the whole copy or none.

    Raises:
        OSError: The cache directory cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        model, tokenizer = _load(
            _COPY_DTYPE, torch.device("cpu"), weights.parent, gguf_file=weights.name
        )
        quantizer = getattr(model, "hf_quantizer", None)
        if quantizer is not None:
            # The weights are plain tensors by now; saving is refused while the model says GGUF.
            quantizer.remove_quantization_config(model)
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        try:
            os.rename(unfinished, folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Another process was faster, its copy is the same.
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
