"""Problems of calls that were validated before: every layer of a model makes the same call.

The key is all that validation looks at. A call that has no key (an argument of a kind that
validation refuses) is validated like one that was never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from fa_triton.validation import validate_flash_attn

if TYPE_CHECKING:
    from fa_triton.problem import AttnOptions, AttnProblem

Problem = TypeVar("Problem")

_KEPT_PROBLEMS = 256
_places: dict[tuple[type, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}


class KnownProblems(Generic[Problem]):
    """Problems of one operator.

    Args:
        validate: Takes the operands and, by name, the options of a call.
    """

    def __init__(self, validate: Callable[..., Problem]) -> None:
        self.validate = validate
        self.by_key: dict[tuple[object, ...], Problem] = {}

    def of(self, q: object, k: object, v: object, options: Mapping[str, Any]) -> Problem:
        """Validate a call, or take what an equal one was found to be.

        Raises:
            ValueError, TypeError, NotImplementedError: As the validation.
        """
        try:
            key = (*options, *_key(q, k, v, *options.values()))
            problem = self.by_key.get(key)
        except (AttributeError, RuntimeError, TypeError):
            return self.validate(q, k, v, **options)
        if problem is None:
            problem = self.validate(q, k, v, **options)
            if len(self.by_key) >= _KEPT_PROBLEMS:
                self.forget()
            self.by_key[key] = problem
        return problem

    def forget(self) -> None:
        """Validate every call anew."""
        self.by_key.clear()


FLASH_ATTN: KnownProblems[AttnProblem] = KnownProblems(validate_flash_attn)


def problem_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttnOptions
) -> AttnProblem:
    """Problem of a call of ``flash_attn``."""
    return FLASH_ATTN.of(q, k, v, options)


def forget() -> None:
    """Validate every call of ``flash_attn`` anew."""
    FLASH_ATTN.forget()


def _key(*arguments: object) -> tuple[object, ...]:
    """What decides about a call. The types are part of it: True and 1 are equal, not the same."""
    types = tuple(map(type, arguments))
    tensors, sequences = _places.get(types) or _find_places(types)
    forms: list[Any] = list(arguments)
    for at in tensors:
        forms[at] = _form(forms[at])
    for at in sequences:  # of tensors or of numbers
        forms[at] = _key(*forms[at])
    return torch.is_grad_enabled(), types, *forms


def _find_places(types: tuple[type, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where a call has tensors and sequences, kept by the types of its arguments."""
    if len(_places) >= _KEPT_PROBLEMS:
        _places.clear()
    tensors, sequences = (
        tuple(at for at, kind in enumerate(types) if issubclass(kind, kinds))
        for kinds in (torch.Tensor, (list, tuple))
    )
    _places[types] = tensors, sequences
    return tensors, sequences


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.layout,
        tensor.is_neg(),
        tensor.requires_grad,
    )
