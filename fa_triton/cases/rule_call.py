"""From a rule row to the call it describes: its columns are shapes, dtypes and plain arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fa_triton.cases.call import CaseCall, Operand, Small
from fa_triton.cases.case import RuleCase
from fa_triton.layout import is_paged

# Arguments of the call; a column may hold None to pass None.
_TEXTS = ("layout_q", "layout_kv", "layout_out")
_INTS = (
    "mask_mode",
    "win_left",
    "win_right",
    "max_seqlen_q",
    "max_seqlen_kv",
    "return_softmax_lse",
)
_FLOATS = ("softmax_scale",)
_SMALL = {
    "block_table": torch.int32,
    "cu_seqlens_q": torch.int32,
    "cu_seqlens_kv": torch.int32,
    "seqused_q": torch.int32,
    "seqused_kv": torch.int32,
    "sinks": torch.float32,
    "attn_mask": torch.int8,
    "metadata": torch.int32,
}
_OPERANDS = ("q", "k", "v")
# What the operator of the rows is told and a function that returns its results is not.
_RESULTS = ("attn_out", "softmax_lse", "expect_attn_out", "expect_softmax_lse")
COLUMNS = frozenset(
    (
        *_TEXTS,
        *_INTS,
        *_FLOATS,
        *(f"{name}_{part}" for name in (*_OPERANDS, *_RESULTS) for part in ("shape", "dtype")),
        *(f"{name}_{part}" for name in _SMALL for part in ("shape", "dtype", "values")),
        *(f"{name}_format" for name in (*_OPERANDS, *_RESULTS, *_SMALL)),
        "deterministic",
        "expectTilingKey",
    )
)
_DTYPES = {
    "FLOAT16": torch.float16,
    "BFLOAT16": torch.bfloat16,
    "BF16": torch.bfloat16,
    "FLOAT": torch.float32,
    "FLOAT32": torch.float32,
    "INT8": torch.int8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}
# Values of q, k and v, of which rows say nothing.
_RANGE = (-5.0, 5.0)
# A plan of one word: how rows say that one is given, whatever it holds.
_SOME_PLAN = (1,)
_PLAN_WORDS = 16


def check_columns(names: Iterable[str]) -> None:
    """Refuse a column that no row has.

    Raises:
        ValueError: Names it.
    """
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise ValueError(f"a rule row must have known columns only, got {unknown[0]!r}")


def describe_rule(case: RuleCase) -> CaseCall:
    """Describe the call of a row.

    Raises:
        ValueError: A cell is unreadable, or a tensor of the call lacks its shape.
    """
    cells = case.cells
    small = {
        name: _small(name, cells, default)
        for name, default in _SMALL.items()
        if cells.get(f"{name}_shape") is not None
    }
    if "metadata" in small and small["metadata"].shape == _SOME_PLAN:
        small["metadata"] = Small((_PLAN_WORDS,), small["metadata"].dtype)
    options: dict[str, Any] = {
        name: None if cells[name] is None else str(cells[name]) for name in _TEXTS if name in cells
    }
    for names, convert in ((_INTS, _as_int), (_FLOATS, float)):
        options |= {name: convert(cells[name]) for name in names if name in cells}
    # the result that a refused row would be given to fill has some other shape
    out_shape = lse_shape = None
    if case.succeeds:
        out_shape = cells.get("expect_attn_out_shape") or cells.get("attn_out_shape")
        lse_shape = cells.get("expect_softmax_lse_shape") or cells.get("softmax_lse_shape")
    return CaseCall(
        q=_operand("q", cells),
        k=_operand("k", cells),
        v=_operand("v", cells),
        small=small,
        options=options,
        out_shape=None if out_shape is None else _shape("attn_out", out_shape),
        lse_shape=None if lse_shape is None else _shape("softmax_lse", lse_shape),
    )


def with_lengths(call: CaseCall, page_size: int) -> CaseCall:
    """Give the length tensors of a valid row values: whole axes, equal parts, counted pages.

    Args:
        call: A call that validates.
        page_size: Its tokens per page, 0 without pages.
    """
    small = dict(call.small)
    paged = is_paged(call.options["layout_kv"])
    tokens = {"q": _tokens(call.q.shape, call.options["layout_q"])}
    if paged:
        rows, columns = small["block_table"].shape
        tokens["kv"] = min(columns, call.k.shape[0] // rows) * page_size
    else:
        tokens["kv"] = _tokens(call.k.shape, call.options["layout_kv"])
    for name, tensor in call.small.items():
        if tensor.values is not None:
            continue
        side = name.rpartition("_")[2]
        values = None
        if name.startswith("cu_seqlens"):
            values = np.linspace(0, tokens[side], tensor.shape[0])
        elif name.startswith("seqused"):
            whole = tokens[side]
            if f"cu_seqlens_{side}" in small:
                whole //= tensor.shape[0]
            values = np.full(tensor.shape, whole)
        elif name == "block_table":
            values = np.arange(tensor.shape[0] * tensor.shape[1]).reshape(tensor.shape)
        if values is not None:
            small[name] = Small(tensor.shape, tensor.dtype, values.astype(np.int32))
    return replace(call, small=small)


def _tokens(shape: tuple[int, ...], layout: str) -> int:
    return shape[{"BSND": 1, "BNSD": 2, "TND": 0}[layout]]


def _operand(name: str, cells: Mapping[str, Any]) -> Operand:
    cell = cells.get(f"{name}_shape")
    if cell is None:
        raise ValueError(f"`{name}_shape` must be given, got none")
    return Operand(_shape(name, cell), _dtype(name, cells, torch.float16), _RANGE)


def _small(name: str, cells: Mapping[str, Any], default: torch.dtype) -> Small:
    shape = _shape(name, cells[f"{name}_shape"])
    values = cells.get(f"{name}_values")
    array = None
    if values is not None:
        array = np.array(_numbers(f"{name}_values", values), dtype=np.int32).reshape(shape)
    return Small(shape, _dtype(name, cells, default), array)


def _shape(name: str, cell: Any) -> tuple[int, ...]:
    return tuple(_numbers(f"{name}_shape", cell))


def _numbers(column: str, cell: Any) -> list[int]:
    try:
        return [int(part) for part in str(cell).split()]
    except ValueError as error:
        raise ValueError(f"`{column}` must be integers such as 2 128, got {cell!r}") from error


def _dtype(name: str, cells: Mapping[str, Any], default: torch.dtype) -> torch.dtype:
    word = cells.get(f"{name}_dtype")
    if word is None:
        return default
    if word not in _DTYPES:
        raise ValueError(f"`{name}_dtype` must be one of {', '.join(_DTYPES)}, got {word!r}")
    return _DTYPES[word]


def _as_int(cell: Any) -> int:
    number = float(cell)
    if not number.is_integer():
        raise ValueError(f"an argument must be a whole number, got {cell!r}")
    return int(number)
