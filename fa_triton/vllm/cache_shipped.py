"""The cache update as the compile check takes it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fa_triton.compile.declare import DEVICES, declare, devices_of
from fa_triton.compile.variant import VECTOR_ONLY, KernelVariant
from fa_triton.kernel_form import KernelForm, parse_key_of
from fa_triton.vllm.cache_update import INT8_KERNEL, KERNEL, cache_update_form

OP = "cache_update"
KERNELS = (KERNEL, INT8_KERNEL)
HEADS = (1, 8)
HEAD_DIMS = (64, 96, 128, 192, 256)


def cache_variants() -> list[KernelVariant]:
    """List all shipped forms, each with the targets that use it."""
    return [_variant(form, devices) for form, devices in devices_of(cache_forms).items()]


def cache_variant(key: str) -> KernelVariant:
    """Build the variant of a key that a launch logged, shipped or not, for all devices.

    Raises:
        ValueError: The text is no key of this kernel.
    """
    form = parse_key_of(KERNELS, key)
    return _variant(form, DEVICES)


def cache_forms(_device: str) -> Iterator[KernelForm]:
    """Every head dim in bf16, the usual one in the other dtypes, both into eight bits too."""
    for heads in HEADS:
        for dim in HEAD_DIMS:
            for stored in (torch.bfloat16, torch.int8):
                yield cache_update_form(torch.bfloat16, stored, heads, dim, dim)
    yield cache_update_form(torch.float16, torch.int8, 8, 128, 128)
    for dtype in (torch.float16, torch.float32):
        yield cache_update_form(dtype, dtype, 8, 128, 128)


def _variant(form: KernelForm, devices: tuple[str, ...]) -> KernelVariant:
    constants = dict(form.constants)
    return declare(
        form,
        op=OP,
        tile=f"{constants['BLOCK_N']}x{constants['D']}",
        optional=(),
        argument_type=_argument_type,
        properties=dict.fromkeys(devices, VECTOR_ONLY),
    )


def _argument_type(name: str, form: KernelForm) -> str:
    """Type of a run-time argument as a launch specialises it: aligned pointers, head strides."""
    if name == "slot_mapping":
        return "*i32:16"
    if name in ("stride_xn", "stride_yn"):
        return "i32:16"
    if name in ("k_scale", "v_scale"):
        return "*fp32:16"
    if name.startswith(("stride_", "num_", "head_dim", "page_size")):
        return "i32"
    own = dict(form.dtypes)["cache"] if name in ("k_pages", "v_pages") else form.dtype
    return f"*{own}:16"
