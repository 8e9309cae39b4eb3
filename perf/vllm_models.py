"""Tiny random models, written once per folder: what they do matters, not what they say."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
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
_SHARED = {
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
    LlamaForCausalLM(LlamaConfig(**_SHARED, head_dim=64)).float().save_pretrained(folder)


def write_wide(folder: Path) -> None:
    """A Llama with heads of 512, which the kernels do not serve."""
    options = _SHARED | {"num_attention_heads": 2, "num_key_value_heads": 1}
    LlamaForCausalLM(LlamaConfig(**options, head_dim=512)).float().save_pretrained(folder)


def write_mistral(folder: Path) -> None:
    """The same with a window of 48 keys in every layer."""
    config = MistralConfig(**_SHARED, head_dim=64, sliding_window=WINDOW)
    MistralForCausalLM(config).float().save_pretrained(folder)


def write_gemma2(folder: Path) -> None:
    """Heads of 256, a window in every other layer, soft cap 5."""
    options = {**_SHARED, "tie_word_embeddings": True}
    config = Gemma2Config(
        **options,
        head_dim=256,
        sliding_window=WINDOW,
        query_pre_attn_scalar=256,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=30.0,
    )
    model = Gemma2ForCausalLM(config).float()
    with torch.no_grad():
        # tied embeddings, scaled by sqrt(hidden), would saturate the last soft cap
        model.model.embed_tokens.weight.mul_(0.05)
    model.save_pretrained(folder)


SERVED = ("llama", "mistral", "gemma2")
_WRITERS = {
    "llama": write_llama,
    "wide": write_wide,
    "mistral": write_mistral,
    "gemma2": write_gemma2,
}


def tiny_model(name: str, parent: Path) -> Path:
    """Folder of a model, written if it is not there."""
    folder = parent / name
    if not (folder / "model.safetensors").is_file():
        torch.manual_seed(0)
        _WRITERS[name](folder)
    return folder
