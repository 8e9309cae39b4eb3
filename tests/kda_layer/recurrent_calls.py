"""Calls of ``recurrent_kda`` with random inputs, and the float64 answer to them.

The answer is put together here from the oracle of single sequences: which state a sequence reads
and which slots it leaves states in is written down once more, without the kernel's arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fa_triton.kda_reference import kda_recurrent_reference

PACKED = ("TND", "NTD")


@dataclass(frozen=True)
class Case:
    """One call: sizes, options, and what lies where.

    Attributes:
        lengths: Tokens of each sequence; equal ones without ``packed``.
        packed: Whether ``cu_seqlens`` separates them.
        padding: Tokens behind the last sequence.
        slots: Slots of the pool; 0 for one state per sequence and no indices.
        indices: Rows of ``ssm_state_indices``; flat for one slot per sequence.
        accepted: ``num_accepted_tokens``.
    """

    lengths: tuple[int, ...] = (1, 1, 1)
    packed: bool = True
    padding: int = 0
    heads: int = 2
    v_heads: int = 4
    dim_k: int = 64
    dim_v: int = 64
    layout: str = "BSND"
    dtype: torch.dtype = torch.bfloat16
    gate_dtype: torch.dtype = torch.bfloat16
    beta_dtype: torch.dtype = torch.bfloat16
    state_dtype: torch.dtype = torch.float32
    slots: int = 0
    indices: tuple[Any, ...] = ()
    accepted: tuple[int, ...] = ()
    index_dtype: torch.dtype = torch.int32
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


@dataclass
class Call:
    """Arguments of one call, by name."""

    arguments: dict[str, Any]

    @property
    def state(self) -> torch.Tensor:
        return self.arguments["state"]

    def __call__(self, function: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        return function(**self.arguments)


def make(case: Case) -> Call:
    """Random inputs of a case; equal seeds give equal inputs."""
    generator = torch.Generator().manual_seed(case.seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    count = len(case.lengths)
    tokens = sum(case.lengths) + case.padding if case.packed else case.lengths[0]
    outer = 1 if case.packed or case.layout in PACKED else count

    def rows(dtype: torch.dtype, heads: int, *dim: int) -> torch.Tensor:
        x = rand(outer, tokens, heads, *dim).to(dtype)
        if case.layout in ("BNSD", "NTD"):
            x = x.transpose(1, 2).contiguous()
        return x[0] if case.layout in PACKED else x

    options = {"layout": case.layout, **case.options}
    in_kernel = options.get("use_gate_in_kernel", True)
    gate = rows(case.gate_dtype, case.v_heads, case.dim_k)
    beta = rows(case.beta_dtype, case.v_heads)
    v_first = options.get("state_v_first", True)
    dims = (case.dim_v, case.dim_k) if v_first else (case.dim_k, case.dim_v)
    arguments: dict[str, Any] = {
        "q": rows(case.dtype, case.heads, case.dim_k),
        "k": rows(case.dtype, case.heads, case.dim_k) * case.dim_k**-0.5,
        "v": rows(case.dtype, case.v_heads, case.dim_v),
        "raw_gate": gate if in_kernel else -torch.nn.functional.softplus(gate),
        "beta": beta if options.get("use_beta_sigmoid_in_kernel") else beta.sigmoid(),
        "state": rand(case.slots or count, case.v_heads, *dims).to(case.state_dtype),
        **options,
    }
    if in_kernel:
        arguments["A_log"] = rand(case.v_heads) * 0.5
        arguments["dt_bias"] = rand(case.v_heads * case.dim_k)
    if case.packed:
        starts = torch.tensor((0, *case.lengths)).cumsum(0)
        arguments["cu_seqlens"] = starts.to(case.index_dtype)
    if case.indices:
        arguments["ssm_state_indices"] = torch.tensor(case.indices, dtype=case.index_dtype)
    if case.accepted:
        arguments["num_accepted_tokens"] = torch.tensor(case.accepted, dtype=case.index_dtype)
    return Call(arguments)


@dataclass(frozen=True)
class Answer:
    """Float64 results: rows token-major, states by slot; slots that must keep their bits."""

    out: torch.Tensor
    states: dict[int, torch.Tensor]


def answer(case: Case, arguments: dict[str, Any]) -> Answer:
    """What the call must give; ``states`` maps slots (or sequences) to what they must hold."""
    options = {
        name: arguments[name]
        for name in (
            "safe_gate",
            "lower_bound",
            "A_log",
            "dt_bias",
            "state_v_first",
            "use_qk_l2norm_in_kernel",
            "use_beta_sigmoid_in_kernel",
            "allow_neg_eigval",
            "use_gate_in_kernel",
        )
        if name in arguments
    }
    for name in ("state_v_first", "use_qk_l2norm_in_kernel", "use_gate_in_kernel"):
        options.setdefault(name, True)
    rows = [_token_major(arguments[name], case.layout) for name in ("q", "k", "v")]
    rows += [_token_major(arguments[name], case.layout) for name in ("raw_gate", "beta")]
    total = rows[0].shape[0]
    out = torch.zeros(total, case.v_heads, case.dim_v, dtype=torch.float64)
    states: dict[int, torch.Tensor] = {}
    skip = arguments.get("skip_index_below", 0)
    scale = arguments.get("scale") or case.dim_k**-0.5
    in_place = arguments.get("inplace_final_state", True)
    first = 0
    for n, length in enumerate(case.lengths):
        row = _columns(case, n)
        column = case.accepted[n] - 1 if case.accepted else 0
        start = first
        first += length
        if case.indices and row[column] < skip:
            continue
        running = arguments["state"][row[column]][None].double()
        for step in range(length):
            part = [x[start + step : start + step + 1] for x in rows]
            q, k, v, gate, beta = part
            b_out, running = kda_recurrent_reference(
                q, k, v, gate, beta, scale, layout="TND", initial_state=running, **options
            )
            out[start + step] = b_out[0]
            if in_place and len(row) > 1 and row[step] >= skip:
                states[row[step]] = running[0]
        if not in_place:
            states[n] = running[0]
        elif len(row) == 1 and length:
            states[row[0]] = running[0]
    return Answer(out, states)


def _columns(case: Case, n: int) -> Sequence[int]:
    if not case.indices:
        return (n,)
    row = case.indices[n]
    return row if isinstance(row, tuple) else (row,)


def _token_major(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "NTD":
        return x.transpose(0, 1)
    if layout == "BNSD":
        x = x.transpose(1, 2)
    return x if layout == "TND" else x.flatten(0, 1)
