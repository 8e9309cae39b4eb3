"""Convolution and norm of a KDA layer as the compile check takes them."""

from __future__ import annotations

from collections.abc import Iterator

from fa_triton.compile.declare import DEVICES, declare, devices_of
from fa_triton.compile.variant import VECTOR_ONLY, KernelVariant
from fa_triton.kernel_form import KernelForm, parse_key_of
from fa_triton.layer.convolution_variants import (
    FN,
    FN_TENSORS,
    UPDATE,
    UPDATE_TENSORS,
    fn_constants,
    update_constants,
)
from fa_triton.layer.gated_norm_variants import NORM, NORM_TENSORS, norm_constants

OP = "kda_layer"
KERNELS = (FN, UPDATE, NORM)
WIDTHS = (2, 3, 4, 5)
# Channels of the widest tile, and of one that is only partly filled.
CHANNELS = (4096, 96)
# Tokens of a step, and whether they are speculative.
STEPS = ((1, False), (1, True), (2, True), (4, True), (8, True), (8, False))
NORM_DIMS = (64, 80, 128, 256, 512, 1024)

_OPTIONAL = {FN: FN_TENSORS, UPDATE: UPDATE_TENSORS, NORM: NORM_TENSORS}
_BARE = {
    FN: ("conv_states", "has_initial_state", "cache_indices", "query_start_loc"),
    UPDATE: ("conv_state_indices",),
}
_INDEX_TENSORS = (
    "cache_indices",
    "query_start_loc",
    "conv_state_indices",
    "num_accepted_tokens",
)
_ROW_STRIDES = (
    "stride_xt",
    "stride_ot",
    "stride_wt",
    "stride_st",
    "stride_xo",
    "stride_go",
    "stride_oo",
)


def layer_variants() -> list[KernelVariant]:
    """List all shipped forms, each with the targets that use it."""
    return [_variant(form, devices) for form, devices in devices_of(layer_forms).items()]


def layer_variant(key: str) -> KernelVariant:
    """Build the variant of a key that a launch logged, shipped or not, for all devices.

    Raises:
        ValueError: The text is no key of these kernels.
    """
    form = parse_key_of(KERNELS, key)
    return _variant(form, DEVICES)


def layer_forms(_device: str) -> Iterator[KernelForm]:
    """Every width and step in bf16, the usual ones in the other dtypes."""
    for width in WIDTHS:
        for dim in CHANNELS:
            yield _convolution(FN, fn_constants(dim, width, has_silu=True), _BARE[FN])
        for longest, is_speculative in STEPS:
            yield _update(width, longest, is_speculative)
    for dtype, state in (("bf16", "fp32"), ("fp16", "fp16"), ("fp32", "fp32")):
        constants = fn_constants(4096, 4, has_silu=True)
        yield _convolution(FN, constants, FN_TENSORS, dtype=dtype, state=state)
        yield _update(4, 1, False, dtype=dtype, state=state)
    yield _convolution(FN, fn_constants(4096, 4, has_silu=False), ("query_start_loc",), state="")
    for dim in NORM_DIMS:
        for has_silu in (False, True):
            constants = tuple(norm_constants(dim, has_silu=has_silu).items())
            dtypes = (("gate", "bf16"), ("weight", "bf16"))
            yield KernelForm(NORM, "bf16", constants, (), dtypes)
        dtypes = (("gate", "bf16"), ("weight", "fp32"), ("bias", "fp32"))
        constants = tuple(norm_constants(dim, has_silu=False).items())
        yield KernelForm(NORM, "bf16", constants, NORM_TENSORS, dtypes)
        dtypes = (("gate", "fp32"), ("weight", "fp32"))
        yield KernelForm(NORM, "fp32", constants, (), dtypes)


def _update(
    width: int, longest: int, is_speculative: bool, *, dtype: str = "bf16", state: str = "bf16"
) -> KernelForm:
    columns = width - 1 + (longest - 1 if is_speculative else 0)
    tensors = _BARE[UPDATE]
    if is_speculative:
        tensors = (*tensors, "num_accepted_tokens", "query_start_loc")
    constants = update_constants(4096, width, longest, columns, has_silu=True)
    return _convolution(UPDATE, constants, tensors, dtype=dtype, state=state)


def _convolution(
    kernel: str,
    constants: dict[str, int | bool],
    tensors: tuple[str, ...],
    *,
    dtype: str = "bf16",
    state: str = "bf16",
) -> KernelForm:
    dtypes = {"weight": dtype, "bias": dtype if "bias" in tensors else "", "state": state}
    return KernelForm(
        kernel,
        dtype,
        tuple(constants.items()),
        tensors,
        tuple((name, own) for name, own in dtypes.items() if own),
    )


def _variant(form: KernelForm, devices: tuple[str, ...]) -> KernelVariant:
    constants = dict(form.constants)
    blocks = [str(size) for name, size in constants.items() if name.startswith("BLOCK_")]
    return declare(
        form,
        op=OP,
        tile="x".join(blocks),
        optional=_OPTIONAL[form.kernel],
        argument_type=_argument_type,
        properties=dict.fromkeys(devices, VECTOR_ONLY),
    )


def _argument_type(name: str, form: KernelForm) -> str:
    """Type of a run-time argument as a launch specialises it: aligned pointers and row strides."""
    if name in _INDEX_TENSORS:
        return "*i32:16"
    if name == "has_initial_state":
        return "*i8:16"
    if name == "eps":
        return "fp32"
    if name == "stride_sc":
        return "i32:1"
    if name.startswith(("stride_", "num_", "dim", "pad_")):
        return "i32:16" if name in _ROW_STRIDES else "i32"
    own = "state" if name in ("conv_state", "conv_states") else name
    return f"*{dict(form.dtypes).get(own, form.dtype)}:16"
