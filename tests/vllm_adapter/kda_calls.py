"""Random calls as vLLM's KDA layers make them, and the float64 answer sequence by sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.kda_reference import kda_recurrent_reference

# Relative RMS errors that the operators are held to.
LIMIT = {torch.bfloat16: 3.5e-3, torch.float16: 5e-4}
STATE_LIMIT = 3.5e-3


@dataclass
class KdaStep:
    """Packed sequences of one step: raw gates, raw step sizes, and a pool of states.

    Attributes:
        q: ``[1, T, H, K]``.
        k: ``[1, T, H, K]``.
        v: ``[1, T, HV, V]``.
        raw_g: ``[1, T, HV, K]``.
        raw_beta: ``[1, T, HV]``.
        A_log: ``[HV]``.
        dt_bias: ``[HV * K]``.
        pool: ``[slots, HV, V, K]`` fp32.
        slots: ``[N]`` int32, from 1 on.
        starts: ``[N + 1]`` int32.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    raw_g: torch.Tensor
    raw_beta: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    pool: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor

    @property
    def states(self) -> torch.Tensor:
        """States of the sequences ``[N, HV, V, K]``."""
        return self.pool[self.slots.long()]

    @property
    def beta(self) -> torch.Tensor:
        """Step sizes after their sigmoid, as older layers pass them."""
        return self.raw_beta.float().sigmoid()

    def gate(self, lower_bound: float | None = None) -> torch.Tensor:
        """Natural-log decays in fp32."""
        x = self.raw_g.float() + self.dt_bias.view(self.raw_g.shape[2:])
        rate = self.A_log.exp()[:, None]
        if lower_bound is not None:
            return lower_bound * torch.sigmoid(rate * x)
        return -rate * torch.nn.functional.softplus(x)

    def answer(
        self, lower_bound: float | None = None, *, from_zero: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Result ``[1, T, HV, V]`` and states ``[N, HV, V, K]`` in float64."""
        initial = self.states.double()
        initial[list(from_zero)] = 0
        return kda_recurrent_reference(
            self.q,
            self.k,
            self.v,
            self.raw_g,
            self.raw_beta,
            self.q.shape[-1] ** -0.5,
            initial_state=initial,
            cu_seqlens=self.starts.tolist(),
            safe_gate=lower_bound is not None,
            lower_bound=lower_bound,
            use_gate_in_kernel=True,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            state_v_first=True,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
        )


def make_kda_step(
    lengths: list[int],
    *,
    heads: int = 2,
    dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> KdaStep:
    """Make a step; rows of q, k and v are cut out of one tensor, as a convolution leaves them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    mixed = rand(tokens, 3 * heads * dim).to(dtype)
    q, k, v = (x.view(1, tokens, heads, dim) for x in mixed.split(heads * dim, dim=-1))
    count = len(lengths)
    pool = torch.full((count + 4, heads, dim, dim), torch.nan)
    slots = torch.randperm(count + 3, generator=generator)[:count].int() + 1
    pool[slots.long()] = rand(count, heads, dim, dim) * 0.3
    return KdaStep(
        q,
        k,
        v,
        rand(1, tokens, heads, dim).to(dtype),
        rand(1, tokens, heads).to(dtype),
        rand(heads) * 0.5,
        rand(heads * dim),
        pool,
        slots,
        torch.tensor((0, *lengths)).cumsum(0).int(),
    )


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """RMS of the error over the RMS of the exact result."""
    return ((got.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()).item()


def assert_close(step: KdaStep, got: torch.Tensor, exact: torch.Tensor) -> None:
    """Hold a result to the limit of its dtype."""
    assert got.shape == exact.shape
    assert got.dtype == step.q.dtype
    assert relative_error(got, exact) < LIMIT[got.dtype]
