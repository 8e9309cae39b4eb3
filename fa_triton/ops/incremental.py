"""``torch.ops.fa_triton.incre_flash_attention``.

A cache is a list of tensors here, one where it is a tensor; lengths are host integers or a tensor,
each with an argument of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fa_triton.incremental_attention.calls import attend_incremental
from fa_triton.layout import extents
from fa_triton.ops.definition import by_name, define, has_symbols, tensors_have_symbols
from fa_triton.validation.incremental import (
    check_incremental_form,
    validate_incre_flash_attention,
)

if TYPE_CHECKING:
    from fa_triton.incremental_problem import Cache, IncreOptions

# Tensors come before the options: torch records no keyword-only tensors for autograd.
_SCHEMA = (
    "incre_flash_attention(Tensor query, Tensor[] key, Tensor[] value, Tensor? pse_shift=None, "
    "Tensor? atten_mask=None, Tensor? lengths=None, Tensor? antiquant_scale=None, "
    "Tensor? antiquant_offset=None, Tensor? block_table=None, Tensor? kv_padding_size=None, "
    "Tensor? quant_scale2=None, Tensor? quant_offset2=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? key_shared_prefix=None, "
    "Tensor? value_shared_prefix=None, Tensor? sinks=None, Tensor? metadata=None, *, "
    "SymInt[]? actual_seq_lengths=None, int num_heads=1, float scale_value=1.0, "
    "str input_layout='BSH', int num_key_value_heads=0, int block_size=0, int inner_precise=1, "
    "str? antiquant_mode=None, str masked_row='zero', float softcap=0.0, int win_left=-1, "
    "bool return_softmax_lse=False, bool lse_includes_sink=False) -> (Tensor, Tensor)"
)
_TENSORS = (
    "pse_shift",
    "atten_mask",
    "lengths",
    "antiquant_scale",
    "antiquant_offset",
    "block_table",
    "kv_padding_size",
    "quant_scale2",
    "quant_offset2",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "key_shared_prefix",
    "value_shared_prefix",
    "sinks",
    "metadata",
)


def call_operator(
    query: torch.Tensor, key: Cache, value: Cache, options: IncreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the operator with arguments of the public function."""
    lengths = options.get("actual_seq_lengths")
    named: dict[str, Any] = {**options, "actual_seq_lengths": None}
    if isinstance(lengths, torch.Tensor):
        named["lengths"] = lengths
    elif lengths is not None:
        named["actual_seq_lengths"] = list(lengths)
    return torch.ops.fa_triton.incre_flash_attention(
        query,
        [key] if isinstance(key, torch.Tensor) else list(key),
        [value] if isinstance(value, torch.Tensor) else list(value),
        **named,
    )


def _named(args: tuple[torch.Tensor | None, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Options of the public function."""
    named = by_name(_TENSORS, args, options)
    lengths = named.pop("lengths", None)
    if lengths is not None:
        named["actual_seq_lengths"] = lengths
    return named


def _run(
    query: torch.Tensor,
    key: list[torch.Tensor],
    value: list[torch.Tensor],
    *args: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = attend_incremental(query, key, value, **_named(args, options))
    return out, query.new_zeros(1, dtype=torch.float32) if lse is None else lse


def _fake(
    query: torch.Tensor,
    key: list[torch.Tensor],
    value: list[torch.Tensor],
    *args: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    named = _named(args, options)
    lengths = options.get("actual_seq_lengths") or ()
    scale = named.get("quant_scale2")
    if tensors_have_symbols(query, *key, *value, *args) or has_symbols(*lengths):
        # no size is compared with anything, or a graph would serve some lengths only; the sizes
        # are checked when it runs
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        layout = check_incremental_form(query, key, value, **named)
        is_quantised = scale is not None and not statically_known_true(scale.numel() == 0)
        out_dtype = torch.int8 if is_quantised else query.dtype
        if layout == "BSH":
            lse_shape = (query.shape[0], named.get("num_heads", 1), query.shape[1])
        else:
            sizes = extents(query, layout)
            lse_shape = (sizes.outer, sizes.heads, sizes.tokens)
    else:
        problem = validate_incre_flash_attention(query, key, value, **named)
        out_dtype, lse_shape = problem.out_dtype, problem.attn.lse_shape
    if not named.get("return_softmax_lse", False):
        lse_shape = (1,)
    out = query.new_empty(query.shape, dtype=out_dtype)
    return out, query.new_empty(lse_shape, dtype=torch.float32)


define(_SCHEMA, run=_run, fake=_fake)
