"""Kimi Delta Attention over one sequence: inputs as a layer has them, and what a result must be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from fa_triton.kda_reference import chunk_kda_reference
from perf.gate import MAX_ERROR_RATIO, Accuracy


@dataclass(frozen=True)
class KdaWorkload:
    """One call of the chunked forward in layout BSND, raw gate and initial state included.

    Attributes:
        name: As in results.
        is_bounded: Bounded gate ``lower_bound sigmoid(e^A x)``, else ``-e^A softplus(x)``.
        num_tokens: T.
        num_heads: H, of q, k and v.
        key_dim: K.
        value_dim: V.
        chunk_size: C.
        goal: Largest ratio of our time to the fastest peer's.
    """

    name: str
    is_bounded: bool
    goal: float
    num_tokens: int = 2048
    num_heads: int = 8
    key_dim: int = 128
    value_dim: int = 128
    chunk_size: int = 64


WORKLOADS = {
    w.name: w
    for w in (
        KdaWorkload("bounded", is_bounded=True, goal=0.75),
        KdaWorkload("unbounded", is_bounded=False, goal=0.4),
    )
}


@dataclass(frozen=True)
class KdaInputs:
    """Tensors of a workload."""

    workload: KdaWorkload
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    initial_state: torch.Tensor

    @property
    def rows(
        self,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The positional tensors of a call."""
        return self.q, self.k, self.v, self.g, self.beta

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``chunk_kda``."""
        return {
            "chunk_size": self.workload.chunk_size,
            "initial_state": self.initial_state,
            "output_final_state": True,
            "use_gate_in_kernel": True,
            "safe_gate": self.workload.is_bounded,
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
        }


def make_inputs(workload: KdaWorkload, dtype: torch.dtype, seed: int = 0) -> KdaInputs:
    """Draw inputs: normalised keys, gates as of a layer at its start, a state to start from."""
    generator = torch.Generator().manual_seed(seed)
    w = workload

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    rows = (1, w.num_tokens, w.num_heads)
    q, k = (torch.nn.functional.normalize(draw(*rows, w.key_dim), dim=-1) for _ in range(2))
    return KdaInputs(
        workload=w,
        q=q.to(dtype),
        k=k.to(dtype),
        v=draw(*rows, w.value_dim).to(dtype),
        g=draw(*rows, w.key_dim),
        beta=torch.rand(rows, generator=generator),
        A_log=2 * torch.rand(w.num_heads, generator=generator),
        dt_bias=0.1 * draw(w.num_heads * w.key_dim),
        initial_state=0.1 * draw(1, w.num_heads, w.key_dim, w.value_dim),
    )


def check(inputs: KdaInputs, attn_out: torch.Tensor) -> Accuracy:
    """Compare a result in layout BSND with float64, beside plain rounding."""
    exact = _reference(inputs, torch.float64)
    rounded = _reference(inputs, inputs.q.dtype, emulate=inputs.q.dtype)
    error = attn_out.double() - exact
    return Accuracy(
        ours=error.square().mean().sqrt().item(),
        emulation=(rounded.double() - exact).square().mean().sqrt().item(),
        max_error=error.abs().max().item(),
        limit=MAX_ERROR_RATIO,
    )


def _reference(
    inputs: KdaInputs, dtype: torch.dtype, emulate: torch.dtype | None = None
) -> torch.Tensor:
    w = inputs.workload
    options = {name: x for name, x in inputs.options.items() if name != "chunk_size"}
    results = chunk_kda_reference(
        *inputs.rows,
        w.key_dim**-0.5,
        w.chunk_size,
        **options,
        outputs=("attn_out",),
        compute_dtype=torch.float32 if emulate else torch.float64,
        out_dtype=dtype,
        emulate=emulate,
    )
    if results.attn_out is None:
        raise RuntimeError("the reference returned no result")
    return results.attn_out
