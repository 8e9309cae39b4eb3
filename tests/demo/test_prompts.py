"""Prompts from the command line and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_triton.demo.prompts import check_prompt, encode, read_prompts


def test_prompt_is_stripped() -> None:
    assert check_prompt("  Hello \n") == "Hello"


@pytest.mark.parametrize("prompt", ["", "  ", "\n"])
def test_empty_prompt_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="`--prompt` must not be empty"):
        check_prompt(prompt)


def test_one_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("One?\n\n  Zwei, größer?  \n", encoding="utf-8")
    assert read_prompts(path) == ["One?", "Zwei, größer?"]


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.txt", tmp_path):
        with pytest.raises(ValueError, match="`--batch` must be a file"):
            read_prompts(path)


@pytest.mark.parametrize("content", [b"", b"\n  \n"])
def test_file_without_a_prompt_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="a prompt on at least one line"):
        read_prompts(path)


def test_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="must be UTF-8 text"):
        read_prompts(path)


def test_every_prompt_is_a_conversation_of_its_own() -> None:
    class Tokenizer:
        def apply_chat_template(self, conversations: list, **options: object) -> dict:
            assert options["padding"] is True
            assert options["add_generation_prompt"] is True
            return {"input_ids": conversations, "attention_mask": 1, "token_type_ids": 2}

    encoded = encode(Tokenizer(), ["a", "b"])
    assert encoded == {
        "input_ids": [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]],
        "attention_mask": 1,
    }
