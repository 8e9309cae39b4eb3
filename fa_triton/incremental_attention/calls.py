"""The flow of a call: validate, then answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fa_triton.device import cpu_mode
from fa_triton.validation.incremental import validate_incre_flash_attention

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fa_triton.incremental_problem import Cache, IncreOptions


def attend_incremental(
    query: torch.Tensor, key: Cache, value: Cache, **options: Unpack[IncreOptions]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend as ``incre_flash_attention`` says.

    Returns:
        The result, and the log-sum-exp where it is asked for.
    """
    problem = validate_incre_flash_attention(query, key, value, **options)
    if query.device.type == "cpu" and cpu_mode() == "reference":
        from fa_triton.incremental_reference import incre_flash_attention_reference

        out, lse = incre_flash_attention_reference(query, key, value, **options)
        return out, lse if problem.attn.return_softmax_lse else None
    raise NotImplementedError(
        "the kernels of incre_flash_attention are not built yet; on CPU tensors "
        "FA_TRITON_CPU=reference answers from the float64 oracle"
    )
