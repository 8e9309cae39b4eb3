"""Values that many keys contain, each hashed and compared once."""

from __future__ import annotations

import functools
from collections.abc import Hashable


@functools.lru_cache(maxsize=1024)
def identity(value: Hashable) -> Hashable:
    """An object that stands for a value in keys: equal values have the same one.

    It is hashed and compared by its address. A value that was forgotten gets another object, so
    that a key may miss what was kept for it, and never finds what was kept for another value.
    """
    return object()
