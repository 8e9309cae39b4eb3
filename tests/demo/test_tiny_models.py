"""Models of transformers with random weights: our attention against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GenerationConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from fa_triton.integrations.transformers import register

_VOCABULARY = 97
_PAD, _EOS = 0, 1
_WINDOW = 6
_SIZES: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": _PAD,
    "eos_token_id": _EOS,
    "bos_token_id": None,
    # Logits far enough apart for greedy tokens to be comparable.
    "initializer_range": 0.3,
}


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_SIZES))


def _mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=_WINDOW))


def _gpt_oss() -> PreTrainedModel:
    return GptOssForCausalLM(
        GptOssConfig(
            **_SIZES,
            sliding_window=_WINDOW,
            layer_types=["sliding_attention", "full_attention"],
            num_local_experts=2,
            num_experts_per_tok=1,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    )


def _gemma2() -> PreTrainedModel:
    sizes = _SIZES | {"head_dim": 80, "initializer_range": 0.5}
    return Gemma2ForCausalLM(
        Gemma2Config(
            **sizes,
            sliding_window=_WINDOW,
            layer_types=["sliding_attention", "full_attention"],
            query_pre_attn_scalar=80,
            attn_logit_softcapping=3.0,
        )
    )


# The model and the implementation of transformers that it is compared with.
_MODELS = {
    "llama": (_llama, "sdpa"),
    "mistral": (_mistral, "sdpa"),
    "gpt_oss": (_gpt_oss, "eager"),
    "gemma2": (_gemma2, "eager"),
}


def _build(name: str) -> tuple[PreTrainedModel, str]:
    torch.manual_seed(0)
    register()
    build, theirs = _MODELS[name]
    return build().eval(), theirs


def _prompts(lengths: tuple[int, ...]) -> dict[str, Tensor]:
    """Random token ids, padded on the left."""
    generator = torch.Generator().manual_seed(1)
    longest = max(lengths)
    ids = torch.full((len(lengths), longest), _PAD)
    mask = torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = torch.randint(2, _VOCABULARY, (length,), generator=generator)
        mask[row, longest - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _generate(
    model: PreTrainedModel, implementation: str, inputs: dict[str, Tensor], **options: Any
) -> tuple[Tensor, Tensor]:
    """Return greedy tokens and the logits of every step."""
    model.set_attn_implementation(implementation)
    config = GenerationConfig(
        max_new_tokens=14,
        min_new_tokens=14,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=_PAD,
        eos_token_id=_EOS,
        **options,
    )
    with torch.no_grad():
        result: Any = model.generate(**inputs, generation_config=config)
    return result.sequences, torch.stack(result.logits)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("lengths", [(9,), (9, 9), (3, 9, 5), (20, 2)])
@pytest.mark.parametrize("name", list(_MODELS))
def test_generation_equals_that_of_transformers(
    name: str, lengths: tuple[int, ...], cache: str | None
) -> None:
    model, theirs = _build(name)
    inputs = _prompts(lengths)
    options = {} if cache is None else {"cache_implementation": cache}
    tokens, logits = _generate(model, "fa_triton", inputs, **options)
    expected_tokens, expected_logits = _generate(model, theirs, inputs, **options)
    assert torch.equal(tokens, expected_tokens)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-3, atol=1e-3)


def test_forward_in_chunks() -> None:
    model, theirs = _build("llama")
    ids = _prompts((12,))["input_ids"]
    found = {}
    for implementation in ("fa_triton", theirs):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            first: Any = model(ids[:, :7], use_cache=True)
            # Renamed in transformers 5.
            name = "cache" if "cache" in first else "past_key_values"
            kept = {name: first[name]}
            found[implementation] = model(ids[:, 7:], use_cache=True, **kept).logits
    torch.testing.assert_close(found["fa_triton"], found[theirs], rtol=1e-3, atol=1e-3)


def test_forward_of_a_right_padded_batch() -> None:
    model, theirs = _build("llama")
    inputs = {name: tensor.flip(1) for name, tensor in _prompts((4, 9)).items()}
    real = inputs["attention_mask"].bool()
    found = {}
    for implementation in ("fa_triton", theirs):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found[implementation] = model(**inputs).logits[real]
    torch.testing.assert_close(found["fa_triton"], found[theirs], rtol=1e-3, atol=1e-3)


def test_packed_sequences_are_refused() -> None:
    model, _ = _build("llama")
    model.set_attn_implementation("fa_triton")
    ids = _prompts((6,))["input_ids"]
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with torch.no_grad(), pytest.raises(NotImplementedError, match="must be causal"):
        model(ids, position_ids=positions, use_cache=False)


def test_a_mask_of_ones_own_is_refused() -> None:
    model, _ = _build("llama")
    model.set_attn_implementation("fa_triton")
    ids = _prompts((6,))["input_ids"]
    with torch.no_grad(), pytest.raises(NotImplementedError, match="must be 2-D bool"):
        model(ids, attention_mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))


def test_training_is_refused() -> None:
    model, _ = _build("llama")
    model.set_attn_implementation("fa_triton")
    with pytest.raises(NotImplementedError, match="no backward pass"):
        model(_prompts((6,))["input_ids"])
