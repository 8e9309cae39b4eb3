"""The chunk kernels as the compile check takes them: signatures, constants, declarations."""

from __future__ import annotations

from fa_triton.compile.declare import DEVICES, declare, devices_of
from fa_triton.compile.variant import FULL, VECTOR_ONLY, KernelVariant, Properties
from fa_triton.delta_rule.shipped_forms import shipped_chunk_forms
from fa_triton.kernel_form import KernelForm, parse_key_of

OP = "kda"
_NORMS = ("q_rstd", "k_rstd")
# Tensors that a call may leave out, by kernel.
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "kda_gate": ("A_log", "dt_bias"),
    "kda_qk_norm": (),
    "kda_prepare_spans": (),
    "kda_prepare_scores": (*_NORMS, "is_steep"),
    "kda_prepare_diagonal": (*_NORMS, "is_steep"),
    "kda_prepare_inverse": (),
    "kda_prepare_merge": (),
    "kda_post_wu": _NORMS,
    "kda_fwd_h": ("initial_state", "state_indices", "has_initial_state", "final_state"),
    "kda_finalize": (),
}
KERNELS = tuple(_OPTIONAL)

_VECTOR_KERNELS = (
    "kda_gate",
    "kda_qk_norm",
    "kda_prepare_spans",
    "kda_prepare_diagonal",
    "kda_prepare_inverse",
)
_RECURRENCE = Properties(
    pipelined=False,
    rows_shared=True,
    reason="the state of a chunk is an operand of the next: products and sums take turns",
)
_MERGE_A2 = Properties(
    pipelined=False,
    rows_shared=True,
    reason="each of four small products waits for the one before; blocks do not overlap",
)

_INDEX_TENSORS = ("chunks", "sequences", "state_indices", "is_steep")
_FLOAT_TENSORS = ("A_log", "dt_bias", "gk", "Lkk", "q_rstd", "k_rstd")
_STATES = ("initial_state", "final_state")
_FLOATS = ("scale", "beta_scale", "lower_bound")
_ROW_STRIDES = ("stride_qt", "stride_kt", "stride_vt", "stride_gt")


def chunk_variants() -> list[KernelVariant]:
    """List the kernels of all shipped sizes and tiles, each with the targets that use it."""
    return [_variant(form, devices) for form, devices in devices_of(shipped_chunk_forms).items()]


def chunk_variant(key: str) -> KernelVariant:
    """Build the variant of a key that a launch logged, shipped or not, for all devices.

    Raises:
        ValueError: The text is no key of a chunk kernel.
    """
    form = parse_key_of(KERNELS, key)
    return _variant(form, DEVICES)


def _variant(form: KernelForm, devices: tuple[str, ...]) -> KernelVariant:
    constants = dict(form.constants)
    blocks = [str(size) for name, size in constants.items() if name.startswith("BLOCK_")]
    return declare(
        form,
        op=OP,
        tile="x".join([str(constants.get("CHUNK", "")), *blocks]),
        optional=_OPTIONAL[form.kernel],
        argument_type=_argument_type,
        properties={device: _properties(form, device) for device in devices},
    )


def _properties(form: KernelForm, device: str) -> Properties:
    if form.kernel in _VECTOR_KERNELS:
        return VECTOR_ONLY
    if form.kernel == "kda_prepare_merge" and device != "A5":
        return _MERGE_A2
    return _RECURRENCE if form.kernel == "kda_fwd_h" else FULL


def _argument_type(name: str, form: KernelForm) -> str:
    """Type of a run-time argument as a launch specialises it: aligned pointers and row strides."""
    if name in _INDEX_TENSORS:
        return "*i32:16"
    if name in _FLOAT_TENSORS:
        return "*fp32:16"
    if name == "has_initial_state":
        return "*i8:16"
    if name in _FLOATS:
        return "fp32"
    if name.startswith(("stride_", "num_")):
        return "i32:16" if name in _ROW_STRIDES else "i32"
    if name == "inverse" and form.kernel == "kda_prepare_merge":
        return "*fp32:16"
    own = "state" if name in _STATES else name
    return f"*{dict(form.dtypes).get(own, form.dtype)}:16"
