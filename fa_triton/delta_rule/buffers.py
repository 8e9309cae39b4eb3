"""What the phases of the chunked forward leave for each other, and for the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fa_triton.delta_rule.problem import ChunkKdaProblem


@dataclass(frozen=True)
class PhaseBuffers:
    """Tensors between the phases; shapes as in ``ChunkKdaOutputs``.

    Attributes:
        gk: Cumulative gates, fp32.
        Lkk: ``[B, HV, T, C]`` fp32, workspace.
        inverse: Akk itself, or fp32 of its shape for the merge.
        Aqk: Scores.
        Akk: Inverse of the key matrix.
        w: Of Post-WU.
        u: Of Post-WU.
        qg: Of Post-WU.
        kg: Of Post-WU.
        v_new: Of FwdH.
        h: States before the chunks.
        attn_out: The result.
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
    attn_out: torch.Tensor


def allocate_buffers(problem: ChunkKdaProblem, num_chunks: int, *, is_merged: bool) -> PhaseBuffers:
    """Take memory for one call.

    Args:
        problem: The call.
        num_chunks: Chunks of all batch entries.
        is_merged: Whether the inverse is merged from blocks.
    """
    sizes = problem.sizes
    shapes = problem.shapes(num_chunks // sizes.batch_size)

    def empty(name: str, dtype: torch.dtype = sizes.dtype) -> torch.Tensor:
        return torch.empty(shapes.of(name), dtype=dtype, device=sizes.device)

    inverse = empty("Akk")
    return PhaseBuffers(
        gk=empty("gk", torch.float32),
        Lkk=empty("Akk", torch.float32),
        inverse=empty("Akk", torch.float32) if is_merged else inverse,
        Akk=inverse,
        **{name: empty(name) for name in ("Aqk", "w", "u", "qg", "kg", "v_new", "h", "attn_out")},
    )
