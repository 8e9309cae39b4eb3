"""Meaningful requests that no kernel serves yet: each is refused by name, with a way round."""

from __future__ import annotations

from fa_triton.problem import BatchProblem


def refuse_unbuilt(problem: BatchProblem) -> None:
    """Refuse what the kernels and plans cannot do yet.

    Raises:
        NotImplementedError: Names the feature and what to use instead.
    """
    if problem.batch_invariant:
        raise NotImplementedError(
            "batch_invariant=True is not built yet; call flash_attn once per sequence"
        )
