"""Files of tile sizes: ``autotune_configs/<device>/<op>.json``, and the user's before them.

``$FA_TRITON_CONFIG_DIR/<device>/<op>.json`` has the same form as a shipped file.
"""

from __future__ import annotations

import functools
import os
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

CONFIG_DIR_VARIABLE = "FA_TRITON_CONFIG_DIR"


class Entry(Protocol):
    """One line of a file: conditions, and the tiles where they hold."""

    @property
    def config(self) -> Any:
        """Tile sizes, a :class:`msgspec.Struct`; every integer is a power of two."""
        ...


EntryT = TypeVar("EntryT", bound=Entry)


def entries(op: str, device: str, form: type[EntryT]) -> tuple[EntryT, ...]:
    """Entries for an operator on a device, those of the user's file first.

    Args:
        op: Name of the file.
        device: Name of the folder: ``A2``, ``A3``, ``A5``, ``cuda`` or ``cpu``.
        form: Type of an entry.

    Raises:
        ValueError: A file that does not decode, named with the reason.
    """
    folder = os.environ.get(CONFIG_DIR_VARIABLE)
    return _user_entries(op, device, form, folder) + shipped_entries(op, device, form)


@functools.cache
def shipped_entries(op: str, device: str, form: type[EntryT]) -> tuple[EntryT, ...]:
    """Entries of the shipped file; none if there is no such file."""
    file = resources.files("fa_triton.autotune_configs") / device / f"{op}.json"
    return _decode(file.read_bytes(), str(file), form) if file.is_file() else ()


@functools.cache
def _user_entries(
    op: str, device: str, form: type[EntryT], folder: str | None
) -> tuple[EntryT, ...]:
    if not folder:
        return ()
    file = Path(folder) / device / f"{op}.json"
    return _decode(file.read_bytes(), str(file), form) if file.is_file() else ()


def _decode(text: bytes, name: str, form: type[EntryT]) -> tuple[EntryT, ...]:
    try:
        found: tuple[EntryT, ...] = msgspec.json.decode(text, type=tuple[form, ...])  # type: ignore[valid-type]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"tile file {name} must hold a list of tile entries: {error}") from error
    for entry in found:
        for field, size in msgspec.structs.asdict(entry.config).items():
            is_size = isinstance(size, int) and not isinstance(size, bool)
            if is_size and (size < 1 or size & (size - 1)):
                raise ValueError(f"`{field}` in {name} must be a power of two, got {size}")
    return found
