"""The attention kernels as the compile check takes them: signatures, constants, declarations."""

from __future__ import annotations

from fa_triton.attention.cache_forms import cache_forms
from fa_triton.attention.forms import COMBINE, FORWARD, attn_forms
from fa_triton.attention.tiles import loads_fractals
from fa_triton.attention.variants import CACHE_TENSORS, COMBINE_TENSORS, FORWARD_TENSORS
from fa_triton.compile.declare import DEVICES, declare, devices_of
from fa_triton.compile.variant import FULL, VECTOR_ONLY, KernelVariant, Properties
from fa_triton.kernel_form import KernelForm, parse_key_of
from fa_triton.problem import PER_TOKEN

OP = "flash_attn"
CACHE_OP = "incre_flash_attention"
KERNELS = (FORWARD, COMBINE)

_INDEX_TENSORS = (
    "plan",
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "seqused_q",
    "seqused_kv",
    "block_table",
)
_FLOAT_TENSORS = (
    "sinks",
    "alibi_slopes",
    "softmax_lse",
    "part_acc",
    "part_max",
    "part_sum",
    "k_scale",
    "k_offset",
    "v_scale",
    "v_offset",
)
# Scalars that come with a tensor of a cache.
_SCALARS_OF = {
    "bias": ("stride_xb", "stride_xn", "stride_xr"),
    "key_mask": ("mask_fill", "stride_mb", "stride_mn", "stride_mr"),
}
_TOKEN_SCALARS = ("stride_cb", "stride_cn")
_FRACTALS = "fractals of 16 columns become rows on a vector core"
_CAST = Properties(
    pipelined=True,
    rows_shared=True,
    relays=2,
    reason="integers of a cache get the dtype of the queries on a vector core",
)
_NZ = Properties(pipelined=True, rows_shared=True, relays=2, reason=_FRACTALS)
_NZ_TERMS = Properties(pipelined=True, rows_shared=True, relays=4, reason=_FRACTALS)


def attn_variants() -> list[KernelVariant]:
    """List forward and combine kernels of all shipped tiles, each with the targets that use it."""
    forms = devices_of(attn_forms) | devices_of(cache_forms)
    return [_variant(form, devices) for form, devices in forms.items()]


def attn_variant(key: str) -> KernelVariant:
    """Build the variant of a key that a launch logged, shipped or not, for devices that run it.

    Raises:
        ValueError: The text is no key of an attention kernel.
    """
    form = parse_key_of(KERNELS, key)
    devices = DEVICES
    if dict(form.constants).get("IS_NZ"):
        devices = tuple(filter(loads_fractals, DEVICES))
    return _variant(form, devices)


def _variant(form: KernelForm, devices: tuple[str, ...]) -> KernelVariant:
    constants = dict(form.constants)
    if form.kernel == FORWARD:
        tile = f"{constants['BLOCK_Q']}x{constants['BLOCK_KV']}"
        optional = _absent_of_forward(form)
    else:
        tile = f"{constants['BLOCK_R']}x{constants['BLOCK_S']}x{constants['BLOCK_D']}"
        optional = COMBINE_TENSORS
    return declare(
        form,
        op=CACHE_OP if "KV_SCALES" in constants else OP,
        tile=tile,
        optional=optional,
        argument_type=_argument_type,
        properties=dict.fromkeys(devices, _properties(form)),
    )


def _absent_of_forward(form: KernelForm) -> list[str]:
    """Arguments of the forward kernel that the form leaves out, with the scalars of tensors."""
    absent = [name for name in (*FORWARD_TENSORS, *CACHE_TENSORS) if name not in form.tensors]
    for name in absent[:]:
        absent += _SCALARS_OF.get(name, ())
    if dict(form.constants).get("KV_SCALES") != PER_TOKEN:
        absent += _TOKEN_SCALARS
    return absent


def _properties(form: KernelForm) -> Properties:
    if form.kernel == COMBINE:
        return VECTOR_ONLY
    constants = dict(form.constants)
    if not constants.get("IS_NZ"):
        casts = constants.get("KV_SCALES") and not constants.get("HAS_INT8_TERMS")
        return _CAST if casts else FULL
    return _NZ_TERMS if constants.get("HAS_INT8_TERMS") else _NZ


def _argument_type(name: str, form: KernelForm) -> str:
    """Type of a run-time argument as a launch specialises it: aligned pointers and row strides."""
    if name in ("k", "v") and dict(form.constants).get("KV_SCALES"):
        return "*i8:16"
    if name in ("q", "k", "v", "out", "bias"):
        return f"*{form.dtype}:16"
    if name in ("kv_places", "key_mask", "first_columns"):
        return {"kv_places": "*i64:16", "key_mask": "*i8:16"}.get(name, "*i32:16")
    if name in _INDEX_TENSORS:
        return "*i32:16"
    if name in _FLOAT_TENSORS:
        return "*fp32:16"
    if name in ("softmax_scale", "softcap", "mask_fill"):
        return "fp32"
    return "i32:16" if name in ("stride_qr", "stride_ks", "stride_vs", "stride_or") else "i32"
