"""From prompts to left-padded token ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_PROMPT = "What is the capital of France? Answer in one sentence."


def check_prompt(prompt: str) -> str:
    """Return the prompt without surrounding blanks.

    Raises:
        ValueError: Nothing is left.
    """
    stripped = prompt.strip()
    if not stripped:
        raise ValueError(f"`--prompt` must not be empty, got {prompt!r}")
    return stripped


def read_prompts(path: Path) -> list[str]:
    """Read one prompt per line; blank lines are skipped.

    Raises:
        ValueError: Not a readable UTF-8 file, or a file without a prompt.
    """
    if not path.is_file():
        raise ValueError(f"`--batch` must be a file with one prompt per line, got {path}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"`--batch` must be UTF-8 text, got {path}: {error}") from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise ValueError(f"`--batch` must have a prompt on at least one line, got {path}")
    return prompts


def encode(tokenizer: Any, prompts: list[str]) -> dict[str, Tensor]:
    """Apply the chat template and pad on the left.

    Args:
        tokenizer: The model's tokenizer, ``padding_side`` left.
        prompts: What the user says, one conversation each.

    Returns:
        ``input_ids`` and ``attention_mask``, both ``[B, S]`` int64.
    """
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    encoded = tokenizer.apply_chat_template(
        conversations,
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    )
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}
