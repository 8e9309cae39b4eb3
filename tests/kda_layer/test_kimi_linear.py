"""Two KDA layers as Kimi-Linear is served, against a float64 stack that goes token by token.

Prompts are prefilled packed, some in two parts, then decoded, then decoded speculatively, all over
the same pools of states.
"""

from __future__ import annotations

import functools

import pytest
import torch

from tests.kda_layer.kimi_linear import HIDDEN, STEPS, Batch, Stack, exact, rounded

# Prompts: longer than a chunk, shorter than the filter, of some chunks with a tail.
PROMPTS: tuple[int, ...] = (70, 2, 131)
DECODED = 4
# Accepted tokens of each speculative step.
ACCEPTED: tuple[tuple[int, ...], ...] = ((2, 3, 1), (1, 2, 3))
SLOTS = (5, 2, 9)
# Beyond rounding between operators, a prefill rounds inside the chunked form.
FACTOR = 1.15

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("bounded", [False, True], ids=["softplus", "bounded"]),
]


@functools.cache
def sequences() -> list[torch.Tensor]:
    """Inputs of all tokens of each sequence, speculated ones included."""
    generator = torch.Generator().manual_seed(5)
    lengths = [length + DECODED + len(ACCEPTED) * STEPS for length in PROMPTS]
    return [torch.randn(n, HIDDEN, generator=generator).bfloat16() for n in lengths]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def starts(*lengths: int) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def served_prefill(stack: Stack, spans: list[tuple[int, int]], kept: bool) -> list[torch.Tensor]:
    """Prefill tokens ``first <= t < last`` of every sequence in one packed batch."""
    lengths = [last - first for first, last in spans]
    parts = [x[first:last] for x, (first, last) in zip(sequences(), spans, strict=True)]
    batch = Batch(starts(*lengths), ints(*SLOTS), torch.tensor([kept] * len(spans)))
    return list(stack.prefill(torch.cat(parts), batch).split(lengths))


def assert_as_exact(stack: Stack, got: list[list[torch.Tensor]]) -> None:
    """Compare rows of each sequence, from its first token on, with the float64 stack."""
    errors, yardstick, size = 0.0, 0.0, 0.0
    for x, parts in zip(sequences(), got, strict=True):
        rows = torch.cat(parts).double()
        wanted = stack.oracle(x[: len(rows)], exact)
        emulated = stack.oracle(x[: len(rows)], rounded)
        assert torch.isfinite(rows).all()
        errors += float((rows - wanted).pow(2).sum())
        yardstick += float((emulated - wanted).pow(2).sum())
        size += float(wanted.pow(2).sum())
    assert yardstick < 1e-4 * size
    assert errors < FACTOR**2 * yardstick, (errors / yardstick) ** 0.5


def test_packed_prefill_then_decode(bounded: bool) -> None:
    stack = Stack(bounded=bounded)
    rows = [[part] for part in served_prefill(stack, [(0, n) for n in PROMPTS], kept=False)]
    count = len(PROMPTS)
    batch = Batch(starts(*[1] * count), ints(*SLOTS))
    for step in range(DECODED):
        tokens = [x[n + step] for x, n in zip(sequences(), PROMPTS, strict=True)]
        out = stack.decode(torch.stack(tokens), batch)
        for n in range(count):
            rows[n].append(out[n : n + 1])
    assert_as_exact(stack, rows)


def test_prompt_in_two_parts(bounded: bool) -> None:
    stack = Stack(bounded=bounded)
    cuts = (33, 1, 64)
    first = served_prefill(stack, [(0, cut) for cut in cuts], kept=False)
    second = served_prefill(stack, list(zip(cuts, PROMPTS, strict=True)), kept=True)
    assert_as_exact(stack, [[a, b] for a, b in zip(first, second, strict=True)])


def test_speculative_steps(bounded: bool) -> None:
    """Rejected tokens leave no trace: the next step starts from the last accepted one."""
    stack = Stack(bounded=bounded)
    rows = [[part] for part in served_prefill(stack, [(0, n) for n in PROMPTS], kept=False)]
    steps = torch.tensor([[slot, slot + 1, slot + 2] for slot in SLOTS], dtype=torch.int32)
    done: list[int] = list(PROMPTS)
    accepted: tuple[int, ...] = (1, 1, 1)
    generator = torch.Generator().manual_seed(8)
    for taken in ACCEPTED:
        tokens = []
        for x, first, count in zip(sequences(), done, taken, strict=True):
            drafts = torch.randn(STEPS - count, HIDDEN, generator=generator).bfloat16()
            tokens += [x[first : first + count], drafts]
        batch = Batch(
            starts(*[STEPS] * len(PROMPTS)), ints(*SLOTS), steps=steps, accepted=ints(*accepted)
        )
        outs = stack.decode(torch.cat(tokens), batch).split(STEPS)
        for n, count in enumerate(taken):
            rows[n].append(outs[n][:count])
            done[n] += count
        accepted = taken
    assert_as_exact(stack, rows)
