"""Which variants we ship, and how to pick some of them by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from fa_triton.compile.variant import KernelVariant
from fa_triton.targets import target as find_target

_SHOWN = 30


def shipped_variants() -> list[KernelVariant]:
    """Collect every kernel and tile that the launchers can choose, for all operators.

    Raises:
        ValueError: Two variants share a key.
    """
    from fa_triton.variants import all_variants

    variants = all_variants()
    keys = [variant.key for variant in variants]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"`key` must be unique among variants, got twice {', '.join(twice)}")
    return variants


def select(
    variants: Sequence[KernelVariant],
    ops: Sequence[str] = (),
    keys: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> list[tuple[KernelVariant, str]]:
    """Pick the compiles to run.

    Args:
        variants: What there is.
        ops: Operators; all if empty.
        keys: Variant keys, shipped or as a launch logged them; all if empty.
        targets: Targets or device names; those of each variant if empty. A device name stands
            for its family: the family's declaration is what it is held to.

    Returns:
        Pairs of variant and target name.

    Raises:
        ValueError: A name is unknown; the message lists the known ones.
    """
    known_ops = sorted({variant.op for variant in variants})
    for op in ops:
        if op not in known_ops:
            raise ValueError(f"`op` must be one of {', '.join(known_ops)}, got {op!r}")
    variants = [*variants, *_logged_forms(keys, [variant.key for variant in variants])]
    devices = [find_target(name) for name in targets]
    chosen = []
    for variant in variants:
        if (ops and variant.op not in ops) or (keys and variant.key not in keys):
            continue
        if not devices:
            chosen += [(variant, name) for name in variant.properties]
            continue
        for device in devices:
            declared = variant.properties.get(device.name) or variant.properties.get(device.family)
            if declared is not None:
                properties = {**variant.properties, device.name: declared}
                chosen.append((replace(variant, properties=properties), device.name))
    return chosen


def _logged_forms(keys: Sequence[str], known: Sequence[str]) -> list[KernelVariant]:
    """Variants of keys that a launch logged and that are not among the shipped ones."""
    from fa_triton.variants import variant_of_key

    forms = []
    for key in keys:
        if key in known:
            continue
        try:
            forms.append(variant_of_key(key))
        except ValueError:
            raise ValueError(
                f"`variant` must be one of {_some(key, known)}, or a key that a launch logged, "
                f"got {key!r}"
            ) from None
    return forms


def _some(key: str, known: Sequence[str]) -> str:
    """List the known keys, or the closest ones where the list is long."""
    if len(known) <= _SHOWN:
        return ", ".join(known)
    close = difflib.get_close_matches(key, known, n=8, cutoff=0.0)
    return f"{', '.join(close)} … ({len(known)} in all; `fa-triton compile --list` shows them)"
