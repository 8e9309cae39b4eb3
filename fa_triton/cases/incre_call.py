"""From a case of ``incre_flash_attention`` to the tensors of its call."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from fa_triton.cases.call import Operand
from fa_triton.cases.incre_case import IncreCase, TensorSpec
from fa_triton.cases.tensors import META, SEED, random_operand

_OPTIONS = (
    "num_heads",
    "scale_value",
    "input_layout",
    "num_key_value_heads",
    "block_size",
    "inner_precise",
    "antiquant_mode",
    "masked_row",
    "softcap",
    "win_left",
)
_SMALL = (
    "pse_shift",
    "atten_mask",
    "antiquant_scale",
    "antiquant_offset",
    "block_table",
    "kv_padding_size",
    "quant_scale2",
    "quant_offset2",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
)
_DTYPES = {
    "FLOAT16": torch.float16,
    "BF16": torch.bfloat16,
    "FLOAT": torch.float32,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "UINT8": torch.uint8,
    "BOOL": torch.bool,
    "FLOAT8_E4M3FN": torch.float8_e4m3fn,
    # torch_npu packs eight of them into an int32
    "INT4": torch.int32,
    # torch has no such type: another one of eight bits stands for it
    "FLOAT4_E1M2": torch.float8_e5m2,
}
# Bounds of values where the case says none; other operands are normal.
_RANGES = {
    "antiquant_scale": (0.005, 0.02),
    "antiquant_offset": (-20.0, 20.0),
    "quant_scale2": (20.0, 60.0),
    "quant_offset2": (-10.0, 10.0),
    "kv_padding_size": (0.0, 1.0),
}
_INT8_RANGE = (-128.0, 128.0)
# Share of the keys that a mask hides.
_HIDDEN = 0.3

Maker = Callable[[str, TensorSpec], torch.Tensor]


def check_readable(case: IncreCase) -> None:
    """Check that a case describes a call.

    Raises:
        ValueError: It has no operands, or a dtype has another name.
    """
    for name in ("query", "key", "value"):
        if getattr(case, name) is None:
            raise ValueError(f"`{name}` must be given, got none")
    for name in ("query", "key", "value", *_SMALL):
        given = getattr(case, name)
        for spec in given if isinstance(given, list) else [given]:
            if spec is not None:
                _dtype(name, spec)


def make_incre_arguments(case: IncreCase, device: torch.device, seed: int = SEED) -> dict[str, Any]:
    """Arguments of ``incre_flash_attention``, the same for one seed on every device."""
    generator = torch.Generator().manual_seed(seed)
    return _arguments(case, functools.partial(_random, generator=generator, device=device))


def meta_incre_arguments(case: IncreCase) -> dict[str, Any]:
    """Arguments of ``incre_flash_attention`` on the meta device: shapes without memory.

    Raises:
        RuntimeError: A shape that no tensor has, such as a negative axis.
    """

    def make(name: str, spec: TensorSpec) -> torch.Tensor:
        return torch.empty(spec.shape, dtype=_dtype(name, spec), device=META)

    return _arguments(case, make)


def _arguments(case: IncreCase, make: Maker) -> dict[str, Any]:
    check_readable(case)
    arguments: dict[str, Any] = {name: getattr(case, name) for name in _OPTIONS}
    for name in ("query", "key", "value"):
        given = getattr(case, name)
        is_list = isinstance(given, list)
        arguments[name] = [make(name, spec) for spec in given] if is_list else make(name, given)
    for name in _SMALL:
        spec = getattr(case, name)
        if spec is not None:
            arguments[name] = make(name, spec)
    lengths = case.actual_seq_lengths
    if isinstance(lengths, TensorSpec):
        count = math.prod(lengths.shape)
        lengths = lengths.values or [_room(case)] * count
    arguments["actual_seq_lengths"] = lengths
    return arguments


def _room(case: IncreCase) -> int:
    """Keys that a sequence has room for, where shapes are as the layout asks for; else 0."""
    spec = case.key[0] if isinstance(case.key, list) else case.key
    if spec is None:
        return 0
    if case.block_table is not None and len(case.block_table.shape) == 2:
        page = {3: 1, 4: 2, 5: 3}.get(len(spec.shape))
        return 0 if page is None else spec.shape[page] * case.block_table.shape[1]
    axis = 2 if case.input_layout == "BNSD" else 1
    return spec.shape[axis] if axis < len(spec.shape) else 0


def _random(
    name: str, spec: TensorSpec, *, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    dtype = _dtype(name, spec)
    if spec.values is not None:
        return torch.tensor(spec.values).to(dtype).reshape(spec.shape).to(device)
    if name == "block_table":
        pages = torch.arange(math.prod(spec.shape), dtype=dtype)
        return pages.reshape(spec.shape).to(device)
    if name == "atten_mask":
        hidden = torch.rand(spec.shape, generator=generator) < _HIDDEN
        return hidden.to(dtype).to(device)
    bounds = spec.range or _RANGES.get(name)
    if bounds is None and dtype == torch.int8:
        bounds = _INT8_RANGE
    return random_operand(Operand(tuple(spec.shape), dtype, bounds), generator, device)


def _dtype(name: str, spec: TensorSpec) -> torch.dtype:
    if spec.dtype not in _DTYPES:
        raise ValueError(
            f"the dtype of `{name}` must be one of {', '.join(_DTYPES)}, got {spec.dtype!r}"
        )
    return _DTYPES[spec.dtype]
