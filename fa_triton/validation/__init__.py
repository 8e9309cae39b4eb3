"""Validation: one function per operator, before any dispatch; nothing here reads a device.

Values that lie on a device are checked by ``check_lengths_on_host``, which copies them.
"""

from fa_triton.validation.attention import validate_flash_attn
from fa_triton.validation.length_values import (
    bound_lengths,
    check_lengths_on_host,
    lengths_to_plan,
    resolve_lengths,
    value_checks_enabled,
)
from fa_triton.validation.metadata import validate_metadata
from fa_triton.validation.tensors import check_has_memory

__all__ = [
    "bound_lengths",
    "check_has_memory",
    "check_lengths_on_host",
    "lengths_to_plan",
    "resolve_lengths",
    "validate_flash_attn",
    "validate_metadata",
    "value_checks_enabled",
]
