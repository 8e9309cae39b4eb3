"""Token by token comparison of two generations."""

from __future__ import annotations

import math

import torch

from fa_triton.demo.comparison import compare
from fa_triton.demo.generation import Generation
from fa_triton.demo.timing import AttentionTime


def _generation(tokens: list[list[int]], logits: list[torch.Tensor] | None = None) -> Generation:
    steps = max(map(len, tokens))
    return Generation(
        tokens=tokens,
        texts=["" for _ in tokens],
        logits=logits or [torch.zeros(len(tokens), 4) for _ in range(steps)],
        attention=AttentionTime(),
        compile_seconds=0.0,
        seconds=1.0,
    )


def test_equal_generations() -> None:
    found = compare(_generation([[1, 2], [3]]), _generation([[1, 2], [3]]))
    assert found.all_equal
    assert (found.equal, found.total) == (3, 3)
    assert found.max_logit_difference == 0.0


def test_tokens_after_a_difference_do_not_count() -> None:
    found = compare(_generation([[1, 2, 3, 4]]), _generation([[1, 9, 3, 4]]))
    assert not found.all_equal
    assert (found.equal, found.total) == (1, 4)


def test_a_shorter_text_is_not_equal() -> None:
    found = compare(_generation([[1, 2]]), _generation([[1, 2, 3]]))
    assert not found.all_equal
    assert (found.equal, found.total) == (2, 3)


def test_logits_count_up_to_the_step_that_differs() -> None:
    ours = [torch.full((1, 4), value) for value in (0.0, 0.5, 7.0)]
    theirs = [torch.zeros(1, 4)] * 3
    found = compare(_generation([[1, 2, 3]], ours), _generation([[1, 9, 3]], theirs))
    assert found.max_logit_difference == 0.5


def test_logits_of_a_finished_prompt_do_not_count() -> None:
    ours = [torch.zeros(2, 4), torch.tensor([[0.25] * 4, [9.0] * 4])]
    theirs = [torch.zeros(2, 4)] * 2
    found = compare(_generation([[1, 2], [3]], ours), _generation([[1, 2], [3]], theirs))
    assert found.max_logit_difference == 0.25


def test_nan_is_not_lost() -> None:
    ours = [torch.tensor([[math.nan, 0.0]]), torch.zeros(1, 2)]
    theirs = [torch.zeros(1, 2)] * 2
    found = compare(_generation([[1, 2]], ours), _generation([[1, 2]], theirs))
    assert math.isnan(found.max_logit_difference)
