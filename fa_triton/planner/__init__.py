"""Load-balancing plans: which core computes which attention blocks; ints and numpy only."""

from __future__ import annotations

from fa_triton.planner import balanced, bounds, invariant, section_stream_k
from fa_triton.planner.schedule import BALANCED, SECTION_STREAM_K, Plan
from fa_triton.planner.work import AttnWork

PLANNERS = (BALANCED, SECTION_STREAM_K)

__all__ = ["BALANCED", "PLANNERS", "SECTION_STREAM_K", "AttnWork", "Plan", "make_plan"]


def make_plan(
    planner: str,
    work: AttnWork,
    *,
    num_aic: int,
    num_aiv: int,
    block_q: int | None = None,
    block_kv: int | None = None,
    one_head_rows: bool = False,
    batch_invariant: bool = False,
    from_bounds: bool = False,
) -> Plan:
    """Plan a batch with the planner of that name.

    Args:
        planner: ``"balanced"`` or ``"section_stream_k"``.
        work: Lengths, heads and mask.
        num_aic: Cube cores.
        num_aiv: Vector cores.
        block_q: Rows of a row block. None: the sizes section_stream_k chooses from the arguments.
        block_kv: Keys of a key block, likewise.
        one_head_rows: Rows of one query head instead of merged ones (balanced only).
        batch_invariant: Cut every sequence as it would be cut alone (balanced only); block sizes
            that are None then follow no argument either.
        from_bounds: The lengths are upper bounds of what the device will find; balanced plans
            then stay even for shorter lengths. Other plans are only correct for them.

    Returns:
        The plan; :func:`fa_triton.planner.table.encode` writes it as a table.

    Raises:
        ValueError: The planner is unknown or an argument is not usable.
    """
    if planner == SECTION_STREAM_K:
        if one_head_rows:
            raise ValueError("`one_head_rows` must be False for section_stream_k, got True")
        if batch_invariant:
            raise ValueError(
                "`batch_invariant` must be False for section_stream_k, got True; "
                "use planner='balanced'"
            )
        return section_stream_k.plan(
            work, num_aic=num_aic, num_aiv=num_aiv, block_q=block_q, block_kv=block_kv
        )
    if planner != BALANCED:
        raise ValueError(f"`planner` must be one of {PLANNERS}, got {planner!r}")
    if batch_invariant:
        return invariant.plan(
            work,
            num_aic=num_aic,
            num_aiv=num_aiv,
            block_q=block_q,
            block_kv=block_kv,
            one_head_rows=one_head_rows,
        )
    if block_q is None or block_kv is None:
        base_q, base_kv = section_stream_k.base_sizes(work, num_aic, num_aiv)
        block_q = base_q if block_q is None else block_q
        block_kv = base_kv if block_kv is None else block_kv
    plan_lengths = bounds.plan if from_bounds else balanced.plan
    return plan_lengths(
        work,
        num_aic=num_aic,
        num_aiv=num_aiv,
        block_q=block_q,
        block_kv=block_kv,
        one_head_rows=one_head_rows,
    )
