"""The attention kernels as the compile check takes them: signatures, constants, declarations."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from fa_triton.attention.forms import COMBINE, FORWARD, attn_forms
from fa_triton.attention.variants import COMBINE_TENSORS, FORWARD_TENSORS
from fa_triton.compile.variant import FULL, VECTOR_ONLY, KernelVariant, Properties
from fa_triton.kernel_form import KernelForm, parse_key

OP = "flash_attn"
DEVICES = ("A2", "A3", "A5")

_INDEX_TENSORS = (
    "plan",
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "seqused_q",
    "seqused_kv",
    "block_table",
)
_FLOAT_TENSORS = ("sinks", "alibi_slopes", "softmax_lse", "part_acc", "part_max", "part_sum")
_FRACTALS = "fractals of 16 columns become rows on a vector core"
_NZ_A2 = Properties(pipelined=True, rows_shared=False, relays=1, reason=_FRACTALS)
# the compiler finds the rows to share where as many keys are relayed
_NZ_A2_SQUARE = Properties(pipelined=True, rows_shared=True, relays=1, reason=_FRACTALS)
_NZ_A5 = Properties(pipelined=True, rows_shared=True, relays=2, reason=_FRACTALS)


def attn_variants() -> list[KernelVariant]:
    """List forward and combine kernels of all shipped tiles, each with the targets that use it."""
    targets: dict[KernelForm, list[str]] = {}
    for device in DEVICES:
        for form in attn_forms(device):
            devices = targets.setdefault(form, [])
            if device not in devices:
                devices.append(device)
    return [_variant(form, tuple(devices)) for form, devices in targets.items()]


def attn_variant(key: str) -> KernelVariant:
    """Build the variant of a key that a launch logged, shipped or not, for all devices.

    Raises:
        ValueError: The text is no key of an attention kernel.
    """
    form = parse_key(key)
    if form.kernel not in (FORWARD, COMBINE):
        raise ValueError(f"`key` must start with {FORWARD} or {COMBINE}, got {key!r}")
    return _variant(form, DEVICES)


def _variant(form: KernelForm, devices: tuple[str, ...]) -> KernelVariant:
    constants: dict[str, object] = dict(form.constants)
    if form.kernel == FORWARD:
        tile = f"{constants['BLOCK_Q']}x{constants['BLOCK_KV']}"
        optional = FORWARD_TENSORS
    else:
        tile = f"{constants['BLOCK_R']}x{constants['BLOCK_S']}x{constants['BLOCK_D']}"
        optional = COMBINE_TENSORS
    absent = [name for name in optional if name not in form.tensors]
    module = f"fa_triton.kernels.{form.kernel}"
    kernel = _kernel(module, form.kernel)
    compile_time = [p.name for p in kernel.params if p.is_constexpr]
    return KernelVariant(
        op=OP,
        kernel=form.kernel,
        tile=tile,
        key=form.key,
        jit=f"{module}:{form.kernel}",
        signature={
            name: _argument_type(name, form.dtype)
            for name in kernel.arg_names
            if name not in compile_time and name not in absent
        },
        constants={
            **dict.fromkeys(compile_time, False),
            **constants,
            **dict.fromkeys(absent),
        },
        properties={device: _properties(form, device) for device in devices},
    )


def _properties(form: KernelForm, device: str) -> Properties:
    if form.kernel == COMBINE:
        return VECTOR_ONLY
    constants = dict(form.constants)
    if not constants.get("IS_NZ"):
        return FULL
    if device == "A5":
        return _NZ_A5
    is_square = constants["BLOCK_Q"] == constants["BLOCK_KV"] == 32
    return _NZ_A2_SQUARE if is_square else _NZ_A2


@functools.cache
def _kernel(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _argument_type(name: str, dtype: str) -> str:
    """Type of a run-time argument as a launch specialises it: aligned pointers and row strides."""
    if name in ("q", "k", "v", "out"):
        return f"*{dtype}:16"
    if name in _INDEX_TENSORS:
        return "*i32:16"
    if name in _FLOAT_TENSORS:
        return "*fp32:16"
    if name in ("softmax_scale", "softcap"):
        return "fp32"
    return "i32:16" if name in ("stride_qr", "stride_ks", "stride_vs", "stride_or") else "i32"
