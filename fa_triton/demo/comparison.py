"""Compare two generations token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.demo.generation import Generation


@dataclass(frozen=True)
class Comparison:
    """How far two generations agree.

    Attributes:
        total: Tokens of the longer generation, over all prompts.
        equal: Leading tokens that are equal, over all prompts.
        max_logit_difference: Largest difference of a logit among the steps that both took
            from the same tokens.
    """

    total: int
    equal: int
    max_logit_difference: float

    @property
    def all_equal(self) -> bool:
        """Whether every token is equal."""
        return self.equal == self.total


def compare(ours: Generation, theirs: Generation) -> Comparison:
    """Compare prompt by prompt; after the first difference the texts have parted."""
    total = equal = 0
    differences = []
    for prompt, (a, b) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)):
        shared = _common_prefix(a, b)
        total += max(len(a), len(b))
        equal += shared
        # The step that disagrees still started from equal tokens.
        for step in range(min(shared + 1, len(a), len(b))):
            differences.append(
                (ours.logits[step][prompt] - theirs.logits[step][prompt]).abs().max()
            )
    return Comparison(total, equal, torch.stack(differences).max().item())


def _common_prefix(a: list[int], b: list[int]) -> int:
    shared = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        shared += 1
    return shared
