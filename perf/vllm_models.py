"""Tiny random models for vLLM: what their attention does matters, not what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

VOCABULARY = 1000
WINDOW = 48
# With the usual 0.02 all logits are about equal and the text is one token over and over.
_SPREAD = 0.2
_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "initializer_range": _SPREAD,
}


def write_llama(folder: Path) -> None:
    """Two layers, 4 query and 2 key/value heads of 64."""
    _save(LlamaForCausalLM(_config(LlamaConfig, head_dim=64)), folder)


def write_wide(folder: Path) -> None:
    """A Llama with heads of 512, which the kernels do not serve."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 512}
    _save(LlamaForCausalLM(_config(LlamaConfig, **heads)), folder)


def write_mistral(folder: Path) -> None:
    """The same as the Llama with a window of 48 keys in every layer."""
    _save(MistralForCausalLM(_config(MistralConfig, head_dim=64, sliding_window=WINDOW)), folder)


def write_gemma2(folder: Path) -> None:
    """Heads of 256, a window in every other layer, soft cap 5."""
    config = _config(
        Gemma2Config,
        tie_word_embeddings=True,
        head_dim=256,
        sliding_window=WINDOW,
        query_pre_attn_scalar=256,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=30.0,
    )
    model: Any = Gemma2ForCausalLM(config)
    with torch.no_grad():
        # tied embeddings, scaled by sqrt(hidden), would saturate the last soft cap
        model.model.embed_tokens.weight.mul_(0.05)
    _save(model, folder)


def write_bloom(folder: Path) -> None:
    """ALiBi instead of rotary positions, no groups."""
    config = BloomConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=_SPREAD,
    )
    _save(BloomForCausalLM(config), folder)


def _config(kind: Any, **options: Any) -> Any:
    return kind(**(_SHARED | options))


def _save(model: Any, folder: Path) -> None:
    model.float().save_pretrained(folder)


SERVED = ("llama", "mistral", "gemma2", "bloom")
_WRITERS = {
    "llama": write_llama,
    "wide": write_wide,
    "mistral": write_mistral,
    "gemma2": write_gemma2,
    "bloom": write_bloom,
}


def tiny_model(name: str, parent: Path) -> Path:
    """Folder of a model, written if it is not there."""
    folder = parent / name
    if not (folder / "model.safetensors").is_file():
        torch.manual_seed(0)
        _WRITERS[name](folder)
    return folder
