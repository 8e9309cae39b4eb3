"""The copy of fractals to rows as the compile check takes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from fa_triton.attention.fractals import KERNEL, most_keys, unfold_form
from fa_triton.attention.tiles import loads_fractals
from fa_triton.compile.declare import DEVICES, declare, devices_of
from fa_triton.compile.variant import VECTOR_ONLY, KernelVariant
from fa_triton.kernel_form import KernelForm, parse_key_of

OP = "unfold_fractals"
KERNELS = (KERNEL,)
# a page holds a multiple of them
_FEWEST_KEYS = 16
# head dims of K and of V
DIMS = (
    *((dim, dim) for dim in (16, 32, 64, 128, 256, 512)),
    *((dim, dim // 2) for dim in (32, 64, 128, 256)),
)
# of the other dtypes
COMMON_DIMS = ((64, 64), (128, 128), (256, 256))
# decode with large head dims takes 16 bits and integers
LARGE_DIMS = ((512, 512),)


def unfold_variants() -> list[KernelVariant]:
    """List all shipped forms, each with the targets that use it."""
    return [_variant(form, devices) for form, devices in devices_of(unfold_forms).items()]


def unfold_variant(key: str) -> KernelVariant:
    """Build the variant of a key that a launch logged, shipped or not, for devices that run it.

    Raises:
        ValueError: The text is no key of this kernel.
    """
    form = parse_key_of(KERNELS, key)
    return _variant(form, tuple(itertools.filterfalse(loads_fractals, DEVICES)))


def unfold_forms(device: str) -> Iterator[KernelForm]:
    """Every pair of head dims in bf16, the common ones in other dtypes, in tiles of all sizes."""
    if loads_fractals(device):
        return
    dims = {
        torch.bfloat16: DIMS,
        torch.float16: (*COMMON_DIMS, *LARGE_DIMS),
        torch.float32: COMMON_DIMS,
        torch.int8: (*COMMON_DIMS, *LARGE_DIMS),
    }
    for dtype, pairs in dims.items():
        for dims_of_both in pairs:
            step = _FEWEST_KEYS
            while step <= most_keys(dtype, *dims_of_both):
                yield unfold_form(dtype, *dims_of_both, step)
                step *= 2


def _variant(form: KernelForm, devices: tuple[str, ...]) -> KernelVariant:
    constants = dict(form.constants)
    return declare(
        form,
        op=OP,
        tile=f"{constants['BLOCK_S']}x{constants['D']}",
        optional=(),
        argument_type=_argument_type,
        properties=dict.fromkeys(devices, VECTOR_ONLY),
    )


def _argument_type(name: str, form: KernelForm) -> str:
    """Type of a run-time argument as a launch specialises it: aligned pointers, key strides."""
    if name in ("block_table", "seqused_kv"):
        return "*i32:16"
    if name in ("k", "v", "k_rows", "v_rows"):
        return f"*{form.dtype}:16"
    return "i32:16" if name in ("stride_ks", "stride_kd", "stride_vs", "stride_vd") else "i32"
