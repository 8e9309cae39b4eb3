"""``kda_recurrent`` as the compile check takes it: shipped forms, signatures, declarations."""

from __future__ import annotations

from collections.abc import Iterator

from fa_triton.compile.declare import DEVICES, declare, devices_of
from fa_triton.compile.variant import VECTOR_ONLY, KernelVariant
from fa_triton.delta_rule.recurrent_variants import (
    GATE_MODES,
    RECURRENT,
    RECURRENT_TENSORS,
    recurrent_constants,
)
from fa_triton.kernel_form import KernelForm, parse_key_of

OP = "kda"
KERNELS = (RECURRENT,)
# (K, V): powers of two, and head dims whose tiles have columns or rows to spare
HEAD_DIMS = ((64, 64), (128, 128), (256, 256), (128, 256), (64, 128))
PADDED_DIMS = ((96, 96), (192, 192), (128, 80), (80, 128), (240, 256))

_POOL = ("a_log", "dt_bias", "final_state", "cu_seqlens", "ssm_state_indices")
_STEPS = (*_POOL, "num_accepted_tokens")
_DENSE = ("a_log", "dt_bias", "final_state")
_INDEX_TENSORS = ("cu_seqlens", "ssm_state_indices", "num_accepted_tokens")
_FLOAT_TENSORS = ("a_log", "dt_bias")
_ROW_STRIDES = ("stride_sr", "stride_fr", "stride_sh", "stride_fh", "stride_ss", "stride_fs")


def recurrent_variants() -> list[KernelVariant]:
    """List all shipped forms, each with the targets that use it."""
    return [_variant(form, devices) for form, devices in devices_of(recurrent_forms).items()]


def recurrent_variant(key: str) -> KernelVariant:
    """Build the variant of a key that a launch logged, shipped or not, for all devices.

    Raises:
        ValueError: The text is no key of this kernel.
    """
    form = parse_key_of(KERNELS, key)
    return _variant(form, DEVICES)


def recurrent_forms(_device: str) -> Iterator[KernelForm]:
    """Decode and speculative steps of every head dim; more options for K = V = 128."""
    for dims in (*HEAD_DIMS, *PADDED_DIMS):
        for is_v_first in (True, False):
            yield _form(dims, is_v_first=is_v_first)
            yield _form(dims, _STEPS, is_v_first=is_v_first, has_step_slots=True)
    for gate in GATE_MODES:
        tensors = _POOL if gate != "given" else _POOL[2:]
        yield _form((128, 128), tensors, gate=gate)
    for dtype, state in (("fp16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16")):
        yield _form((128, 128), dtype=dtype, state=state)
        yield _form((128, 128), _STEPS, dtype=dtype, state=state, has_step_slots=True)
    yield _form((128, 128), gate_dtype="fp32", beta_dtype="fp32", has_beta_sigmoid=False)
    yield _form((128, 128), _DENSE, has_l2norm=False)
    yield _form((128, 128), is_in_place=False)


def _form(
    dims: tuple[int, int],
    tensors: tuple[str, ...] = _POOL,
    *,
    dtype: str = "bf16",
    gate_dtype: str = "bf16",
    beta_dtype: str = "bf16",
    state: str = "fp32",
    gate: str = "softplus",
    is_v_first: bool = True,
    has_l2norm: bool = True,
    has_beta_sigmoid: bool = True,
    is_in_place: bool = True,
    has_step_slots: bool = False,
) -> KernelForm:
    constants = recurrent_constants(
        *dims,
        gate_mode=GATE_MODES[gate],
        is_v_first=is_v_first,
        has_l2norm=has_l2norm,
        has_beta_sigmoid=has_beta_sigmoid,
        is_in_place=is_in_place,
        has_step_slots=has_step_slots,
    )
    dtypes = (("raw_gate", gate_dtype), ("beta", beta_dtype), ("state", state))
    return KernelForm(RECURRENT, dtype, tuple(constants.items()), tensors, dtypes)


def _variant(form: KernelForm, devices: tuple[str, ...]) -> KernelVariant:
    constants = dict(form.constants)
    return declare(
        form,
        op=OP,
        tile=f"{constants['BLOCK_V']}x{constants['BLOCK_K']}",
        optional=RECURRENT_TENSORS,
        argument_type=_argument_type,
        properties=dict.fromkeys(devices, VECTOR_ONLY),
    )


def _argument_type(name: str, form: KernelForm) -> str:
    """Type of a run-time argument as a launch specialises it: aligned pointers and row strides."""
    if name in _INDEX_TENSORS:
        return "*i32:16"
    if name in _FLOAT_TENSORS:
        return "*fp32:16"
    if name in ("scale", "lower_bound", "beta_scale"):
        return "fp32"
    if name.startswith(("stride_", "num_", "dim_", "group", "skip_")):
        return "i32:16" if name in _ROW_STRIDES else "i32"
    own = "state" if name == "final_state" else name
    return f"*{dict(form.dtypes).get(own, form.dtype)}:16"
