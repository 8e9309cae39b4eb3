"""Validation: one function per operator, before any dispatch; nothing here reads a device.

Values that lie on a device are checked by ``check_lengths_on_host``, which copies them.
"""

from fa_triton.validation.attention import check_call_form, validate_flash_attn
from fa_triton.validation.length_values import (
    HostLengths,
    bound_lengths,
    check_lengths_on_host,
    lengths_to_plan,
    resolve_lengths,
    value_checks_enabled,
)
from fa_triton.validation.metadata import validate_metadata
from fa_triton.validation.page_values import check_page_ids
from fa_triton.validation.states import check_states_form, validate_states
from fa_triton.validation.tensors import check_has_memory, check_is_tensor

__all__ = [
    "HostLengths",
    "bound_lengths",
    "check_call_form",
    "check_has_memory",
    "check_is_tensor",
    "check_lengths_on_host",
    "check_page_ids",
    "check_states_form",
    "lengths_to_plan",
    "resolve_lengths",
    "validate_flash_attn",
    "validate_metadata",
    "validate_states",
    "value_checks_enabled",
]
