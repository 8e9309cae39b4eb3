"""Results on tensors without values: shapes, dtypes and devices of real calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from fa_triton.delta_rule.layouts import PACKED_LAYOUTS, kda_extents
from fa_triton.delta_rule.shapes import ResultShapes
from fa_triton.ops.definition import tensors_have_symbols
from fa_triton.validation.delta_rule import check_input_forms, check_layout
from fa_triton.validation.kda import validate_chunk_kda, validate_gate_cumsum

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.delta_rule.problem import ChunkKdaOptions, GateCallOptions

_FP32_RESULTS = ("gk", "final_state")


def fake_chunk_results(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    *,
    results: tuple[str, ...],
    **options: Unpack[ChunkKdaOptions],
) -> list[torch.Tensor]:
    """Answer as ``delta_rule.calls.chunk_results``.

    A packed batch whose chunk indices are not given has a number of chunks that nobody knows yet.
    """
    rows = (q, k, v, g, beta)
    if tensors_have_symbols(*rows, initial_state, has_initial_state, *_tensors(options)):
        check_input_forms(*rows, options.get("layout", "BSND"))
    else:
        validate_chunk_kda(
            *rows,
            results=results,
            initial_state=initial_state,
            has_initial_state=has_initial_state,
            **options,
        )
    layout = options.get("layout", "BSND")
    shapes = _shapes(q, v, options, "h" in results)
    is_rank_3 = layout in PACKED_LAYOUTS
    found = []
    for name in results:
        shape = shapes.of(name)
        shape = shape[1:] if is_rank_3 and name != "final_state" else shape
        found.append(q.new_empty(shape, dtype=torch.float32 if name in _FP32_RESULTS else q.dtype))
    return found


def fake_over_pool(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    has_initial_state: torch.Tensor | None = None,
    *,
    output_final_state: bool,
    **options: Unpack[ChunkKdaOptions],
) -> torch.Tensor:
    """Answer as ``delta_rule.calls.chunk_over_pool``."""
    rows = (q, k, v, g, beta)
    slots = (initial_state, ssm_state_indices, has_initial_state)
    layout = options.get("layout", "BSND")
    if tensors_have_symbols(*rows, *slots, *_tensors(options)):
        check_input_forms(*rows, layout)
    else:
        validate_chunk_kda(
            *rows,
            results=("attn_out", "final_state") if output_final_state else ("attn_out",),
            initial_state=initial_state,
            ssm_state_indices=ssm_state_indices,
            has_initial_state=has_initial_state,
            **options,
        )
    shape = _shapes(q, v, options, False).of("attn_out")
    return q.new_empty(shape[1:] if layout in PACKED_LAYOUTS else shape)


def fake_gate_sums(
    g: torch.Tensor, *, chunk_size: int, **options: Unpack[GateCallOptions]
) -> torch.Tensor:
    """Answer as ``delta_rule.calls.gate_sums``."""
    layout = check_layout(options.get("layout", "BNSD"))
    if not tensors_have_symbols(g, *_tensors(options)):
        validate_gate_cumsum(g, chunk_size=chunk_size, **options)
    sizes = kda_extents(g, layout)
    shape = (sizes.outer, sizes.heads, sizes.tokens, sizes.head_dim)
    return g.new_empty(shape[1:] if layout in PACKED_LAYOUTS else shape, dtype=torch.float32)


def _tensors(options: GateCallOptions) -> list[torch.Tensor]:
    return [value for value in options.values() if isinstance(value, torch.Tensor)]


def _shapes(
    q: torch.Tensor, v: torch.Tensor, options: ChunkKdaOptions, needs_chunks: bool
) -> ResultShapes:
    layout, chunk_size = options.get("layout", "BSND"), options.get("chunk_size", 64)
    q_sizes, v_sizes = kda_extents(q, layout), kda_extents(v, layout)
    # an operator takes no host lists
    cu_seqlens = cast("torch.Tensor | None", options.get("cu_seqlens"))
    chunk_indices = cast("torch.Tensor | None", options.get("chunk_indices"))
    chunks = -(-q_sizes.tokens // chunk_size)
    if not needs_chunks:
        chunks = 0
    elif chunk_indices is not None:
        chunks = chunk_indices.numel() // 2
    elif cu_seqlens is not None:
        chunks = torch.library.get_ctx().new_dynamic_size()
    return ResultShapes(
        batch_size=q_sizes.outer,
        num_tokens=q_sizes.tokens,
        num_v_heads=v_sizes.heads,
        key_dim=q_sizes.head_dim,
        value_dim=v_sizes.head_dim,
        chunk_size=chunk_size,
        num_sequences=q_sizes.outer if cu_seqlens is None else cu_seqlens.shape[0] - 1,
        chunks_per_entry=chunks,
        state_v_first=options.get("state_v_first", False),
    )
