"""``torch.ops.fa_triton.flash_attn_metadata``: a table whose length is known when it is made."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.attention.calls import plan_batch
from fa_triton.attention.metadata import KnownHeader
from fa_triton.ops.definition import by_name, define, has_symbols, tensors_have_symbols
from fa_triton.planner.table import HEADER_WORDS
from fa_triton.validation import validate_metadata

_SCHEMA = (
    "flash_attn_metadata(SymInt num_heads_q, SymInt num_heads_kv, SymInt head_dim, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, Tensor? seqused_q=None, "
    "Tensor? seqused_kv=None, *, SymInt? batch_size=None, SymInt? max_seqlen_q=None, "
    "SymInt? max_seqlen_kv=None, SymInt? page_size=None, int? mask_mode=0, int? win_left=-1, "
    "int? win_right=-1, str layout_q='BSND', str layout_kv='BSND', str layout_out='BSND', "
    "str planner='balanced', int? num_aic=None, int? num_aiv=None, int? block_q=None, "
    "int? block_kv=None, bool batch_invariant=False, Device? device=None) -> Tensor"
)
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv")


def _run(
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    *args: torch.Tensor | None,
    device: torch.device | None = None,
    **options: Any,
) -> torch.Tensor:
    named = by_name(_LENGTHS, args, options)
    planned = plan_batch(num_heads_q, num_heads_kv, head_dim, device=device, **named)
    # equal batches share the kept table, and a graph may reuse the memory of its results;
    # an inference tensor would not count the writes to it
    with torch.inference_mode(False):
        table = planned.table.clone()
    KnownHeader.remember(table, planned.header)
    return table


def _fake(
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    *args: torch.Tensor | None,
    device: torch.device | None = None,
    **options: Any,
) -> torch.Tensor:
    sizes = (num_heads_q, num_heads_kv, head_dim, *options.values())
    if not (has_symbols(*sizes) or tensors_have_symbols(*args)):
        named = by_name(_LENGTHS, args, options)
        validate_metadata(num_heads_q, num_heads_kv, head_dim, **named)
    if device is None:
        devices = [tensor.device for tensor in args if tensor is not None]
        device = devices[0] if devices else torch.get_default_device()
    words = torch.library.get_ctx().new_dynamic_size(min=HEADER_WORDS)
    return torch.empty(words, dtype=torch.int32, device=device)


define(_SCHEMA, run=_run, fake=_fake, tags=(torch.Tag.dynamic_output_shape,))
