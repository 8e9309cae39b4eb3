"""The undefined symbols of an ELF object."""

from __future__ import annotations

import struct

_SECTION_SYMTAB = 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def undefined_symbols(code: bytes) -> list[str]:
    """Names an object file refers to without defining them.

    Args:
        code: A 64-bit little-endian ELF relocatable object.

    Raises:
        ValueError: It is another kind of file.
    """
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"`code` must be a 64-bit little-endian ELF object, got {code[:6]!r}")
    (table,) = struct.unpack_from("<Q", code, 0x28)
    entry_size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [_SECTION.unpack_from(code, table + i * entry_size) for i in range(count)]
    names = set()
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != _SECTION_SYMTAB:
            continue
        strings = sections[link][4]
        for position in range(offset, offset + size, _SYMBOL.size):
            name, _, _, section, _, _ = _SYMBOL.unpack_from(code, position)
            if name and section == 0:
                start = strings + name
                names.add(code[start : code.index(b"\0", start)].decode())
    return sorted(names)
