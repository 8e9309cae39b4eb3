"""What the phases of the chunked forward leave for each other, and for the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fa_triton.delta_rule.tiles import INVERSE_ROWS

if TYPE_CHECKING:
    from fa_triton.delta_rule.problem import ChunkKdaProblem


@dataclass(frozen=True)
class PhaseBuffers:
    """Tensors between the phases, head-major; shapes as in ``ChunkKdaOutputs``.

    Attributes:
        gk: ``[B, HV, T, K]`` fp32.
        Lkk: ``[B, HV, T, C]`` fp32, workspace.
        inverse: ``[B, HV, T, C]``: Akk itself, or fp32 for the merge.
        Aqk: ``[B, HV, T, C]``.
        Akk: ``[B, HV, T, C]``.
        w: ``[B, HV, T, K]``.
        u: ``[B, HV, T, V]``.
        qg: ``[B, HV, T, K]``.
        kg: ``[B, HV, T, K]``.
        v_new: ``[B, HV, T, V]``.
        h: ``[B, Nc, HV, K, V]`` or V first.
    """

    gk: torch.Tensor
    Lkk: torch.Tensor
    inverse: torch.Tensor
    Aqk: torch.Tensor
    Akk: torch.Tensor
    w: torch.Tensor
    u: torch.Tensor
    qg: torch.Tensor
    kg: torch.Tensor
    v_new: torch.Tensor
    h: torch.Tensor


def allocate_buffers(problem: ChunkKdaProblem, num_chunks: int) -> PhaseBuffers:
    """Take memory for one call; ``num_chunks`` counts those of all batch entries."""
    sizes = problem.sizes
    rows = (sizes.batch_size, sizes.num_v_heads, sizes.num_tokens)

    def empty(*shape: int, dtype: torch.dtype = sizes.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=sizes.device)

    chunk = problem.chunk_size
    scores = empty(*rows, chunk)
    per_entry = num_chunks // sizes.batch_size
    return PhaseBuffers(
        gk=empty(*rows, sizes.key_dim, dtype=torch.float32),
        Lkk=empty(*rows, chunk, dtype=torch.float32),
        inverse=empty(*rows, chunk, dtype=torch.float32) if chunk > INVERSE_ROWS else scores,
        Aqk=empty(*rows, chunk),
        Akk=scores,
        w=empty(*rows, sizes.key_dim),
        u=empty(*rows, sizes.value_dim),
        qg=empty(*rows, sizes.key_dim),
        kg=empty(*rows, sizes.key_dim),
        v_new=empty(*rows, sizes.value_dim),
        h=empty(sizes.batch_size, per_entry, *problem.state_shape),
    )
