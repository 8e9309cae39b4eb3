"""What ``chunk_kda_fwd`` returns, by name and in the order of CANN's operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch


class ChunkKdaOutputs(NamedTuple):
    """The twelve results of the chunked forward; None where a result was not asked for.

    B batch entries, T tokens, HV value heads, C tokens of a chunk, Nc chunks (of a batch entry, or
    of all packed sequences), N sequences. Packed inputs of rank 3 have no axis B.

    Attributes:
        attn_out: ``[B, T, HV, V]``, dtype of q, token-major whatever the input layout.
        final_state: ``[N, HV, K, V]`` or ``[N, HV, V, K]`` fp32, state after each sequence.
        gk: ``[B, HV, T, K]`` fp32, sum of the gates from the start of the chunk, log2.
        Aqk: ``[B, HV, T, C]``, dtype of q: scaled decayed scores with the diagonal.
        Akk: ``[B, HV, T, C]``, dtype of q: inverse of the unit lower triangular key matrix.
        w: ``[B, HV, T, K]``, dtype of q: ``Akk (beta k 2^gk)``.
        u: ``[B, HV, T, V]``, dtype of q: ``Akk (beta v)``.
        qg: ``[B, HV, T, K]``, dtype of q: ``q 2^gk``.
        kg: ``[B, HV, T, K]``, dtype of q: ``k 2^(gk_last - gk)``.
        v_new: ``[B, HV, T, V]``, dtype of q: ``u - w h``.
        h: ``[B, Nc, HV, K, V]`` or V first, dtype of q: state before each chunk.
        initial_state: The caller's own object.
    """

    attn_out: torch.Tensor | None
    final_state: torch.Tensor | None
    gk: torch.Tensor | None
    Aqk: torch.Tensor | None
    Akk: torch.Tensor | None
    w: torch.Tensor | None
    u: torch.Tensor | None
    qg: torch.Tensor | None
    kg: torch.Tensor | None
    v_new: torch.Tensor | None
    h: torch.Tensor | None
    initial_state: torch.Tensor | None

    @classmethod
    def of(
        cls,
        names: Iterable[str],
        found: Iterable[torch.Tensor],
        initial_state: torch.Tensor | None,
    ) -> ChunkKdaOutputs:
        """Put the results that there are in their places."""
        empty = dict.fromkeys(cls._fields)
        return cls(
            **empty | dict(zip(names, found, strict=True)) | {"initial_state": initial_state}
        )
