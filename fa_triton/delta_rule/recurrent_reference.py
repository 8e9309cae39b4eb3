"""``recurrent_kda`` without kernels: the float64 oracle, one sequence and one token at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from fa_triton.delta_rule.layouts import KDA_LAYOUTS
from fa_triton.kda_reference import kda_recurrent_reference

if TYPE_CHECKING:
    from fa_triton.delta_rule.recurrent_problem import RecurrentOptions, RecurrentProblem


def advance_by_reference(
    rows: tuple[torch.Tensor, ...],
    state: torch.Tensor,
    final: torch.Tensor | None,
    problem: RecurrentProblem,
    options: RecurrentOptions,
) -> torch.Tensor:
    """Answer as the kernel does, rounded to the dtypes of q and of the state.

    Args:
        rows: q, k, v, raw_gate and beta.
        state: States that are read.
        final: Where new ones go: ``state`` itself, one per sequence, or None.
        problem: The validated call.
        options: Its index tensors and parameters of the gate.

    Returns:
        The result, token-major.
    """
    sizes = problem.sizes
    out = torch.zeros(problem.out_shape, dtype=rows[0].dtype, device=rows[0].device)
    out_rows = out.view(-1, sizes.num_v_heads, sizes.value_dim)
    for n, (first, last) in enumerate(_spans(problem, options)):
        slots = _Slots.of(n, problem, options)
        if slots.read is None:
            continue
        running = state[slots.read : slots.read + 1].double()
        for step in range(last - first):
            token = first + step
            q, k, v, raw_gate, beta = _token(rows, token, sizes.num_tokens, problem.layout)
            b_out, running = kda_recurrent_reference(
                q,
                k,
                v,
                raw_gate,
                beta,
                problem.scale,
                layout=problem.layout,
                initial_state=running,
                state_v_first=problem.state_v_first,
                safe_gate=options.get("safe_gate", False),
                lower_bound=options.get("lower_bound"),
                use_gate_in_kernel=options.get("use_gate_in_kernel", True),
                A_log=options.get("A_log"),
                dt_bias=options.get("dt_bias"),
                use_qk_l2norm_in_kernel=problem.has_l2norm,
                use_beta_sigmoid_in_kernel=options.get("use_beta_sigmoid_in_kernel", False),
                allow_neg_eigval=options.get("allow_neg_eigval", False),
            )
            out_rows[token] = b_out.reshape(sizes.num_v_heads, sizes.value_dim).to(out.dtype)
            slot = slots.after(step)
            if final is not None and problem.has_step_slots and slot is not None:
                final[slot] = running[0].to(final.dtype)
        if final is None or problem.has_step_slots or (problem.in_place and first >= last):
            continue
        final[slots.read if problem.in_place else n] = running[0].to(final.dtype)
    return out


class _Slots:
    """Slots of one sequence: the one it reads, and those its steps go to."""

    def __init__(self, columns: list[int], column: int, problem: RecurrentProblem) -> None:
        self._columns = columns
        self._problem = problem
        self.read = self._followed(columns[column])

    @staticmethod
    def of(n: int, problem: RecurrentProblem, options: RecurrentOptions) -> _Slots:
        indices = options.get("ssm_state_indices")
        columns = [n] if indices is None else indices[n].reshape(-1).tolist()
        accepted = options.get("num_accepted_tokens")
        column = 0 if accepted is None else min(max(int(accepted[n]), 1), len(columns)) - 1
        return _Slots(columns, column, problem)

    def after(self, step: int) -> int | None:
        return self._followed(self._columns[min(step, len(self._columns) - 1)])

    def _followed(self, index: int) -> int | None:
        is_slot = self._problem.skip_index_below <= index < self._problem.num_slots
        return index if is_slot or not self._problem.num_steps else None


def _spans(problem: RecurrentProblem, options: RecurrentOptions) -> list[tuple[int, int]]:
    """First and last token of every sequence, counted over batch entries."""
    tokens = problem.sizes.num_tokens
    cu_seqlens = options.get("cu_seqlens")
    if cu_seqlens is None:
        return [(n * tokens, (n + 1) * tokens) for n in range(problem.num_sequences)]
    starts = cu_seqlens.tolist()
    return [(a, min(b, tokens)) for a, b in pairwise(starts)]


def _token(
    rows: tuple[torch.Tensor, ...], token: int, num_tokens: int, layout: str
) -> tuple[torch.Tensor, ...]:
    """The rows of one token; ``token`` counts over batch entries."""
    axes = KDA_LAYOUTS[layout]
    entry, position = divmod(token, num_tokens)
    picked = []
    for tensor in rows:
        if axes.outer is not None:
            tensor = tensor.narrow(axes.outer, entry, 1)
        picked.append(tensor.narrow(axes.token, position, 1))
    return tuple(picked)
