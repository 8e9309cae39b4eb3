"""Every form of the attention kernels that the launchers choose on an Ascend device."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from fa_triton.attention.rows import RowKind, RowUnits
from fa_triton.attention.variants import (
    COMBINE_TENSORS,
    FORWARD_TENSORS,
    KernelForm,
    combine_constants,
    parse_key,
)
from fa_triton.compile.variant import FULL, VECTOR_ONLY, KernelVariant
from fa_triton.tile_config import DtypeClass, MaskClass, TileConfig, TileKey, choose_tile

OP = "flash_attn"
FORWARD = "attn_forward"
COMBINE = "attn_combine"
DEVICES = ("A2", "A3", "A5")
HEAD_DIMS = (64, 128, 256)

_DTYPE_CLASSES: dict[str, DtypeClass] = {"bf16": "16bit", "fp16": "16bit", "fp32": "fp32"}
# Names of the questions that are answered yes, for each mask: none, causal, a bound in mode 4.
_MASKS: dict[MaskClass, tuple[tuple[str, ...], ...]] = {
    "none": (("HAS_LIMIT",),),
    "causal": (("HAS_RIGHT",), ("HAS_RIGHT", "HAS_LIMIT")),
    "window": (
        ("HAS_RIGHT", "HAS_LEFT"),
        ("HAS_RIGHT", "HAS_LEFT", "HAS_LIMIT"),
        ("HAS_LEFT", "HAS_LIMIT"),
    ),
}
_COMMON_MASKS = (("HAS_LIMIT",), ("HAS_RIGHT",), ("HAS_RIGHT", "HAS_LEFT"))
_MASK_QUESTIONS = ("HAS_RIGHT", "HAS_LEFT", "HAS_LIMIT")
# Largest unit of a tile choice and the heads merged in it: decode and short queries, then merged
# rows of long or mixed batches, then one query head.
_ROW_CLASSES = ((16, 8), (32, 8), (4096, 4), (4096, 1))
# section_stream_k blocks: (rows, keys) for decode and for the rest
_SECTION_BLOCKS = {True: (64, 256), False: (128, 128)}


def attn_variants() -> list[KernelVariant]:
    """List forward and combine kernels of all shipped tiles, each with the targets that use it."""
    targets: dict[KernelForm, list[str]] = {}
    for device in DEVICES:
        for form in itertools.chain(_forward_forms(device), _combine_forms(device)):
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


def _forward_forms(device: str) -> Iterator[KernelForm]:
    """All optional tensors for every mask; none of them for the two commonest masks in bf16."""
    for dim, dtype, (rows, group) in itertools.product(HEAD_DIMS, _DTYPE_CLASSES, _ROW_CLASSES):
        for mask, answers in _answers():
            if dtype == "fp16" and answers not in _COMMON_MASKS:
                continue  # plans in fp16 equal those in bf16
            tile = _tile(device, dim, dtype, mask, rows)
            yield _forward(dtype, dim, group, tile, answers)
            if dtype == "bf16" and mask != "window" and len(answers) == 1:
                yield _forward(dtype, dim, group, tile, answers, tensors=())
    yield from _section_stream_k_forms(device)


def _section_stream_k_forms(device: str) -> Iterator[KernelForm]:
    """CANN's tables: tiles cut to its blocks, no cut flags, head-major rows for BNSD."""
    for dim, dtype, (rows, group) in itertools.product(HEAD_DIMS, ("bf16", "fp32"), _ROW_CLASSES):
        for mask, answers in _answers():
            if answers not in _COMMON_MASKS:
                continue
            block_q, block_kv = _SECTION_BLOCKS[rows <= 16]
            tile = _tile(device, dim, dtype, mask, rows)
            tile = msgspec.structs.replace(
                tile, block_q=min(tile.block_q, block_q), block_kv=min(tile.block_kv, block_kv)
            )
            yield _forward(dtype, dim, group, tile, answers, cut_flags=False)
            if rows > 16 and group > 1:
                yield _forward(dtype, dim, group, tile, answers, cut_flags=False, head_major=True)


def _combine_forms(device: str) -> Iterator[KernelForm]:
    for dim, dtype, (rows, group) in itertools.product(HEAD_DIMS, _DTYPE_CLASSES, _ROW_CLASSES):
        tile = _tile(device, dim, dtype, "none", rows)
        for kind, has_list in (
            (RowKind.PACKED, True),
            (RowKind.PACKED, False),
            (RowKind.HEAD_MAJOR, False),
        ):
            units = RowUnits(kind, 1, 1, group)
            constants = combine_constants(dim, has_list, units, tile)
            yield KernelForm(COMBINE, dtype, tuple(constants.items()), COMBINE_TENSORS)
            if dtype == "bf16":
                yield KernelForm(COMBINE, dtype, tuple(constants.items()), ())


def _answers() -> Iterator[tuple[MaskClass, tuple[str, ...]]]:
    for mask, forms in _MASKS.items():
        for answers in forms:
            yield mask, answers


def _tile(device: str, dim: int, dtype: str, mask: MaskClass, rows: int) -> TileConfig:
    return choose_tile(TileKey(device, dim, _DTYPE_CLASSES[dtype], mask, rows))


def _forward(
    dtype: str,
    dim: int,
    group: int,
    tile: TileConfig,
    answers: tuple[str, ...],
    *,
    cut_flags: bool = True,
    head_major: bool = False,
    tensors: tuple[str, ...] = FORWARD_TENSORS,
) -> KernelForm:
    constants: dict[str, int | bool] = {
        "GROUP": group,
        "D": dim,
        "BLOCK_Q": tile.block_q,
        "BLOCK_KV": tile.block_kv,
        "HEAD_MAJOR": head_major,
        **{question: question in answers for question in _MASK_QUESTIONS},
        "HAS_CUT_FLAGS": cut_flags,
        "PEEL_INTERIOR": tile.peel_interior,
    }
    return KernelForm(FORWARD, dtype, tuple(constants.items()), tensors)


def _variant(form: KernelForm, devices: tuple[str, ...]) -> KernelVariant:
    constants: dict[str, object] = dict(form.constants)
    if form.kernel == FORWARD:
        tile = f"{constants['BLOCK_Q']}x{constants['BLOCK_KV']}"
        properties = FULL
        optional = FORWARD_TENSORS
    else:
        tile = f"{constants['BLOCK_R']}x{constants['BLOCK_S']}x{constants['BLOCK_D']}"
        properties = VECTOR_ONLY
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
        properties=dict.fromkeys(devices, properties),
    )


@functools.cache
def _kernel(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _argument_type(name: str, dtype: str) -> str:
    """Type of a run-time argument as a launch specialises it: aligned pointers and row strides."""
    if name in ("q", "k", "v", "out"):
        return f"*{dtype}:16"
    if name in ("plan", "cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv"):
        return "*i32:16"
    if name in ("sinks", "softmax_lse", "part_acc", "part_max", "part_sum"):
        return "*fp32:16"
    if name == "softmax_scale":
        return "fp32"
    return "i32:16" if name in ("stride_qr", "stride_ks", "stride_vs", "stride_or") else "i32"
