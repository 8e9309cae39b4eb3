"""One broken rule: the call, the kind of error, and what its message must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Refusal:
    """``says`` lists parts of the message: what was expected and what came."""

    name: str
    call: dict[str, Any]
    error: type[Exception]
    says: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def wrong_value(name: str, call: dict[str, Any], *says: str) -> Refusal:
    return Refusal(name, call, ValueError, ("must", "got", *says))


def wrong_type(name: str, call: dict[str, Any], *says: str) -> Refusal:
    return Refusal(name, call, TypeError, ("must", "got", *says))


def unbuilt(name: str, call: dict[str, Any], *says: str) -> Refusal:
    return Refusal(name, call, NotImplementedError, says)


def assert_refused(validate: Callable[..., object], refusal: Refusal) -> None:
    with pytest.raises(refusal.error) as caught:
        validate(**refusal.call)
    # NotImplementedError is a RuntimeError: the class must be the very one.
    assert type(caught.value) is refusal.error
    message = str(caught.value)
    for part in refusal.says:
        assert part in message, message
