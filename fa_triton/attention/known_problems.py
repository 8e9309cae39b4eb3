"""Problems of calls that were validated before: every layer of a model makes the same call.

The key is all that validation looks at. A call that has no key (an argument of a kind that
validation refuses) is validated like one that was never seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa_triton.validation import validate_flash_attn

if TYPE_CHECKING:
    from fa_triton.problem import AttnOptions, AttnProblem

_KEPT_PROBLEMS = 256

_known: dict[tuple[object, ...], AttnProblem] = {}


def problem_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttnOptions
) -> AttnProblem:
    """Validate a call, or take what an equal one was found to be.

    Raises:
        ValueError, TypeError, NotImplementedError: As ``validate_flash_attn``.
    """
    try:
        key = _key(q, k, v, *options, *options.values())
        problem = _known.get(key)
    except (AttributeError, RuntimeError, TypeError):
        return validate_flash_attn(q, k, v, **options)
    if problem is None:
        problem = validate_flash_attn(q, k, v, **options)
        if len(_known) >= _KEPT_PROBLEMS:
            forget()
        _known[key] = problem
    return problem


def forget() -> None:
    """Validate every call anew."""
    _known.clear()


def _key(*arguments: object) -> tuple[object, ...]:
    """What decides about a call. The types are part of it: True and 1 are equal, not the same."""
    forms = [_form(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    return torch.is_grad_enabled(), *map(type, arguments), *forms


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
