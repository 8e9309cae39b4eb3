"""Meaningful requests that no kernel serves yet: each is refused by name, with a way round."""

from __future__ import annotations

from fa_triton.problem import AttnProblem, BatchProblem

BUILT_HEAD_DIMS = (64, 128, 256)


def refuse_unbuilt(problem: BatchProblem) -> None:
    """Refuse what the kernels and plans cannot do yet.

    Raises:
        NotImplementedError: Names the feature and what to use instead.
    """
    if problem.is_paged:
        raise NotImplementedError(
            f"paged K and V (layout_kv={problem.layout_kv!r} with block_table) are not built yet; "
            "gather the pages into a dense or packed tensor"
        )
    if problem.head_dim not in BUILT_HEAD_DIMS:
        built = ", ".join(map(str, BUILT_HEAD_DIMS))
        raise NotImplementedError(
            f"head dim {problem.head_dim} is not built yet, only {built}; pad q, k and v with "
            "zeros to the next of them and cut the result"
        )
    if problem.batch_invariant:
        raise NotImplementedError(
            "batch_invariant=True is not built yet; call flash_attn once per sequence"
        )
    if isinstance(problem, AttnProblem):
        _refuse_unbuilt_attention(problem)


def _refuse_unbuilt_attention(problem: AttnProblem) -> None:
    if problem.head_dim_v != problem.head_dim:
        raise NotImplementedError(
            f"a head dim of v ({problem.head_dim_v}) other than that of q and k "
            f"({problem.head_dim}) is not built yet; pad the smaller one with zeros"
        )
    if problem.softcap:
        raise NotImplementedError(
            f"softcap={problem.softcap} is not built yet; "
            "fa_triton.reference.flash_attn_reference has it"
        )
    if problem.has_alibi_slopes:
        raise NotImplementedError(
            "alibi_slopes are not built yet; fa_triton.reference.flash_attn_reference has them"
        )
    if problem.lse_includes_sink:
        raise NotImplementedError(
            "lse_includes_sink=True is not built yet; take torch.logaddexp of the returned "
            "softmax_lse and the sinks where softmax_lse is finite"
        )
