"""``torch.ops.fa_triton.flash_attn``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fa_triton.attention.calls import attend
from fa_triton.layout import dense_shape, extents
from fa_triton.ops.definition import by_name, define, has_symbols, tensors_have_symbols
from fa_triton.validation import check_call_form, validate_flash_attn

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.problem import AttnOptions

# Tensors come before the options: torch records no keyword-only tensors for autograd.
_SCHEMA = (
    "flash_attn(Tensor q, Tensor k, Tensor v, Tensor? block_table=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, Tensor? seqused_q=None, "
    "Tensor? seqused_kv=None, Tensor? sinks=None, Tensor? attn_mask=None, Tensor? metadata=None, "
    "Tensor? alibi_slopes=None, *, float softmax_scale=1.0, int? mask_mode=0, int? win_left=-1, "
    "int? win_right=-1, SymInt? max_seqlen_q=-1, SymInt? max_seqlen_kv=-1, "
    "str layout_q='BSND', str layout_kv='BSND', str layout_out='BSND', "
    "bool return_softmax_lse=False, float softcap=0.0, bool lse_includes_sink=False, "
    "bool batch_invariant=False) -> (Tensor, Tensor)"
)
_TENSORS = (
    "block_table",
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "seqused_q",
    "seqused_kv",
    "sinks",
    "attn_mask",
    "metadata",
    "alibi_slopes",
)


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return attend(q, k, v, **by_name(_TENSORS, args, options))


def _fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    named = by_name(_TENSORS, args, options)
    if tensors_have_symbols(q, k, v, *args) or has_symbols(*options.values()):
        out_shape, lse_shape = _symbolic_shapes(q, k, v, **named)
    else:
        problem = validate_flash_attn(q, k, v, **named)
        out_shape, lse_shape = problem.out_shape, problem.lse_shape
    if not named.get("return_softmax_lse", False):
        lse_shape = (1,)
    return q.new_empty(out_shape), q.new_empty(lse_shape, dtype=torch.float32)


def _symbolic_shapes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Unpack[AttnOptions]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the result and of the log-sum-exp, comparing no size with anything.

    A comparison would make a graph that serves some lengths only; the sizes are checked when the
    graph runs.
    """
    layouts = check_call_form(q, k, v, **options)
    sizes = extents(q, layouts.q)
    out_shape = dense_shape(
        layouts.out,
        batch_size=sizes.outer,
        tokens=sizes.tokens,
        num_heads=sizes.heads,
        head_dim=extents(v, layouts.kv).head_dim,
    )
    per_head = (sizes.heads, sizes.tokens)
    return out_shape, per_head if layouts.q == "TND" else (sizes.outer, *per_head)


define(_SCHEMA, run=_run, fake=_fake)
