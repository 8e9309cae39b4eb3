"""Greedy generation with one attention implementation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from fa_triton.demo.compiling import compile_seconds
from fa_triton.demo.model import LoadedModel
from fa_triton.demo.timing import AttentionTime, timed_attention


@dataclass(frozen=True, eq=False)
class Generation:
    """What one run generated.

    Attributes:
        tokens: Generated ids of every prompt, up to and including the end token.
        texts: The same as text.
        logits: Logits of every step ``[B, vocabulary]``, fp32 on the CPU.
        attention: Time spent in the attention function, compiling included.
        compile_seconds: Time spent on making kernels ready within that.
        seconds: Time of the whole run, compiling included.
    """

    tokens: list[list[int]]
    texts: list[str]
    logits: list[Tensor]
    attention: AttentionTime
    compile_seconds: float
    seconds: float


class TextPieces(BaseStreamer):
    """Hands out the text of a single prompt piece by piece, as tokens come.

    Args:
        tokenizer: Turns ids into text.
        write: Gets every new piece.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._write = write
        self._ids: list[int] | None = None
        self._written = 0

    def put(self, value: Tensor) -> None:
        """Take the next token; the first call brings the prompt."""
        if self._ids is None:
            self._ids = []
            return
        self._ids.extend(value.flatten().tolist())
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        # A character of several tokens shows as U+FFFD until it is complete.
        if not text.endswith("\ufffd"):
            self._write(text[self._written :])
            self._written = len(text)

    def end(self) -> None:
        """Write what an unfinished character held back."""
        text = self._tokenizer.decode(self._ids or [], skip_special_tokens=True)
        self._write(text[self._written :])


class StepCounter(BaseStreamer):
    """Reports every generated step of a batch.

    Args:
        advance: Called once per step.
    """

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance
        self._saw_prompt = False

    def put(self, value: Tensor) -> None:
        """Take one token per prompt; the first call brings the prompts."""
        if self._saw_prompt:
            self._advance()
        self._saw_prompt = True

    def end(self) -> None:
        """Nothing is held back."""


def generate(
    loaded: LoadedModel,
    implementation: str,
    inputs: dict[str, Tensor],
    max_new_tokens: int,
    streamer: BaseStreamer | None = None,
) -> Generation:
    """Generate greedily.

    Args:
        loaded: Model and tokenizer.
        implementation: The ``attn_implementation``.
        inputs: ``input_ids`` and ``attention_mask``, ``[B, S]``.
        max_new_tokens: Upper bound of the generated tokens.
        streamer: Gets the tokens as they come.
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    model.set_attn_implementation(implementation)
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    compiling = compile_seconds()
    start = time.perf_counter()
    with torch.no_grad(), timed_attention(implementation) as attention:
        result = model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            streamer=streamer,
        )
    seconds = time.perf_counter() - start
    generated = result.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    tokens = [_until_end(ids, tokenizer.eos_token_id) for ids in generated]
    return Generation(
        tokens=tokens,
        texts=[tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in tokens],
        logits=[step.float().cpu() for step in result.logits],
        attention=attention,
        compile_seconds=compile_seconds() - compiling,
        seconds=seconds,
    )


def _until_end(ids: list[int], end: int) -> list[int]:
    """Cut the padding that follows the end token while other prompts go on."""
    return ids[: ids.index(end) + 1] if end in ids else ids
