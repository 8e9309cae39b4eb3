"""A call that was validated before is recognised, and only such a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton.attention import known_problems
from fa_triton.attention.known_problems import forget, problem_of
from fa_triton.validation import validate_flash_attn
from tests.validation.calls import dense, floats, packed, paged, tensor
from tests.validation.refusals import Refusal, assert_refused
from tests.validation.test_flash_attn_rules import REFUSALS


def recall(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return problem_of(q, k, v, options)  # type: ignore[arg-type]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grow by one at every validation."""
    calls: list[None] = []

    def validate(*args: Any, **options: Any) -> Any:
        calls.append(None)
        return validate_flash_attn(*args, **options)

    monkeypatch.setattr(known_problems.FLASH_ATTN, "validate", validate)
    forget()
    return calls


def test_equal_calls_are_validated_once(counted: list[None]) -> None:
    first = recall(**dense(mask_mode=3))
    assert recall(**dense(mask_mode=3)) is first
    assert first == validate_flash_attn(**dense(mask_mode=3))
    assert len(counted) == 1


@pytest.mark.parametrize(
    "other",
    [
        dense(q=tensor(2, 9, 4, 64)),
        dense(q=tensor(2, 8, 8, 64)[:, :, ::2]),
        dense(sinks=floats(4)),
        dense(mask_mode=3),
        dense(softmax_scale=0.5),
        {name: value.float() for name, value in dense().items()},
        {name: torch.zeros_like(value, device="cpu") for name, value in dense().items()},
    ],
    ids=["shape", "strides", "tensor", "option", "number", "dtype", "device"],
)
def test_other_calls_are_not(counted: list[None], other: dict[str, Any]) -> None:
    recall(**dense())
    assert recall(**other) == validate_flash_attn(**other)
    assert len(counted) == 2


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_every_rule_holds_after_right_calls(refusal: Refusal) -> None:
    for call in (dense(), packed(), paged(), dense(mask_mode=3), dense(mask_mode=4)):
        recall(**call)
    for _ in range(2):
        assert_refused(recall, refusal)


def test_equal_values_of_another_type_are_another_call() -> None:
    recall(**dense(return_softmax_lse=1, mask_mode=3))
    with pytest.raises(TypeError, match="`return_softmax_lse` must be a bool, got float"):
        recall(**dense(return_softmax_lse=1.0, mask_mode=3))
    with pytest.raises(TypeError, match="`mask_mode` must be an int, got float"):
        recall(**dense(return_softmax_lse=1, mask_mode=3.0))


def test_a_tensor_is_no_number() -> None:
    """Its value is not part of what is compared, so another one would be taken for the same."""
    told = "`win_left` must be an int, got a tensor; use .item()"
    for _ in range(2):
        with pytest.raises(TypeError, match=told):
            recall(**dense(mask_mode=4, win_left=torch.tensor(3)))


def test_a_gradient_is_refused_after_a_call_without() -> None:
    call = dense(q=tensor(2, 8, 4, 64).requires_grad_())
    with torch.no_grad():
        recall(**call)
    with pytest.raises(NotImplementedError, match="forward only"):
        recall(**call)


def test_no_tensor_is_kept() -> None:
    forget()
    recall(**dense(q=torch.nn.Parameter(tensor(2, 8, 4, 64), requires_grad=False)))
    (key,) = known_problems.FLASH_ATTN.by_key
    assert not any(isinstance(part, torch.Tensor) for part in key)


def test_few_calls_are_kept(counted: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_problems, "_KEPT_PROBLEMS", 3)
    for scale in range(1, 9):
        recall(**dense(softmax_scale=float(scale)))
        assert len(known_problems.FLASH_ATTN.by_key) <= 3
    assert len(counted) == 8
