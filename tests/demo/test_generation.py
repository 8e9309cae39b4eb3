"""Streaming, timing and cutting of generated tokens."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface

from fa_triton.demo.generation import StepCounter, TextPieces, _until_end
from fa_triton.demo.timing import timed_attention


class _Bytes:
    """A tokenizer whose tokens are bytes, so that characters may span tokens."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(ids).decode("utf-8", errors="replace")


def test_text_comes_in_whole_characters() -> None:
    pieces: list[str] = []
    streamer = TextPieces(_Bytes(), pieces.append)
    streamer.put(torch.tensor([[1, 2, 3]]))
    for byte in "aé!".encode():
        streamer.put(torch.tensor([byte]))
    streamer.end()
    assert "".join(pieces) == "aé!"
    assert "\ufffd" not in "".join(pieces)


def test_unfinished_character_is_not_lost() -> None:
    pieces: list[str] = []
    streamer = TextPieces(_Bytes(), pieces.append)
    streamer.put(torch.tensor([[1]]))
    streamer.put(torch.tensor([ord("a")]))
    streamer.put(torch.tensor([0xC3]))
    streamer.end()
    assert "".join(pieces) == "a\ufffd"


def test_steps_are_counted_without_the_prompt() -> None:
    steps: list[int] = []
    streamer = StepCounter(lambda: steps.append(1))
    streamer.put(torch.zeros(2, 5))
    streamer.put(torch.zeros(2))
    streamer.put(torch.zeros(2))
    streamer.end()
    assert len(steps) == 2


@pytest.mark.parametrize(
    ("ids", "expected"), [([4, 2, 2, 2], [4, 2]), ([4, 5], [4, 5]), ([2], [2])]
)
def test_padding_after_the_end_is_cut(ids: list[int], expected: list[int]) -> None:
    assert _until_end(ids, 2) == expected


def test_attention_is_timed_and_put_back() -> None:
    def attention(module: object, query: torch.Tensor, *, scaling: float) -> tuple:
        return query * scaling, None

    AttentionInterface.register("timed_under_test", attention)
    with timed_attention("timed_under_test") as spent:
        timed = AttentionInterface()["timed_under_test"]
        out, _ = timed(None, torch.ones(2), scaling=3.0)
        timed(None, torch.ones(2), scaling=3.0)
    assert out.tolist() == [3.0, 3.0]
    assert spent.calls == 2
    assert spent.seconds > 0
    assert AttentionInterface()["timed_under_test"] is attention


def test_attention_is_put_back_after_an_error() -> None:
    def attention(*_: object) -> None:
        raise ValueError("from the attention")

    AttentionInterface.register("timed_under_test", attention)
    with pytest.raises(ValueError, match="from the attention"), timed_attention("timed_under_test"):
        AttentionInterface()["timed_under_test"](None, torch.ones(1))
    assert AttentionInterface()["timed_under_test"] is attention
