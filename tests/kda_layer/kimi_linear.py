"""A stack of Kimi-Linear's KDA layers: served through the operators, and token by token in float64.

A layer normalises its input, projects it to q, k and v, sends each through a short convolution of
width 4 with silu, makes a raw gate and an output gate by low-rank projections, runs KDA, the gated
norm and the output projection, and adds its input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fa_triton import (
    causal_conv1d_fn,
    causal_conv1d_update,
    chunk_kda,
    recurrent_kda,
    rms_norm_gated,
)

HIDDEN = 96
HEADS = 2
DIM = 64
WIDTH = 4
STEPS = 3
CHANNELS = HEADS * DIM
EPS = 1e-5


@dataclass(frozen=True)
class Weights:
    """Parameters of one layer: projections ``[out, in]`` in bf16, gate parameters in fp32."""

    qkv: torch.Tensor
    filters: torch.Tensor
    gate_down: torch.Tensor
    gate_up: torch.Tensor
    beta: torch.Tensor
    out_gate_down: torch.Tensor
    out_gate_up: torch.Tensor
    norm: torch.Tensor
    out: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor

    @staticmethod
    def random(generator: torch.Generator) -> Weights:
        def matrix(rows: int, columns: int) -> torch.Tensor:
            x = torch.randn(rows, columns, generator=generator) * columns**-0.5
            return x.bfloat16()

        return Weights(
            qkv=matrix(3 * CHANNELS, HIDDEN),
            filters=matrix(3 * CHANNELS, WIDTH),
            gate_down=matrix(DIM, HIDDEN),
            gate_up=matrix(CHANNELS, DIM),
            beta=matrix(HEADS, HIDDEN),
            out_gate_down=matrix(DIM, HIDDEN),
            out_gate_up=matrix(CHANNELS, DIM),
            norm=(1 + 0.1 * torch.randn(DIM, generator=generator)).bfloat16(),
            out=matrix(HIDDEN, CHANNELS),
            A_log=torch.rand(HEADS, generator=generator),
            dt_bias=torch.randn(CHANNELS, generator=generator) - 2,
        )


@dataclass(frozen=True)
class Batch:
    """Tokens of one step, packed, and where the states of their sequences lie.

    Attributes:
        starts: Starts of the sequences ``[N + 1]``.
        slots: Slot of the convolution state, and of the first step's KDA state ``[N]``.
        kept: Which sequences continue ``[N]``; for prefill.
        steps: Slot of the KDA state after each step ``[N, STEPS]``; for speculative steps.
        accepted: Accepted tokens of the step before ``[N]``; for speculative steps.
    """

    starts: torch.Tensor
    slots: torch.Tensor
    kept: torch.Tensor | None = None
    steps: torch.Tensor | None = None
    accepted: torch.Tensor | None = None


class ServedLayer:
    """A layer as an engine runs it: states of all requests in pools, found by slot."""

    def __init__(self, weights: Weights, slots: int, *, bounded: bool) -> None:
        self.weights = weights
        self.gate = {"safe_gate": True, "lower_bound": -5.0} if bounded else {}
        columns = WIDTH - 1 + STEPS - 1
        # slots that nobody was given yet hold garbage
        self.filters_state = torch.full(
            (slots, columns, 3 * CHANNELS), torch.nan, dtype=torch.bfloat16
        ).transpose(1, 2)
        self.state = torch.full((slots, HEADS, DIM, DIM), torch.nan)

    def prefill(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Whole prompts, or further parts of them."""
        w, h = self.weights, self._normalised(x)
        qkv = causal_conv1d_fn(
            (h @ w.qkv.t()).t(),
            w.filters,
            activation="silu",
            conv_states=self.filters_state,
            has_initial_state=batch.kept,
            cache_indices=batch.slots,
            query_start_loc=batch.starts,
        ).t()
        q, k, v, gate, beta = self._heads(qkv, h)
        out, _ = chunk_kda(
            q,
            k,
            v,
            gate,
            beta,
            layout="TND",
            initial_state=self.state,
            output_final_state=True,
            ssm_state_indices=batch.slots,
            has_initial_state=batch.kept,
            cu_seqlens=batch.starts,
            use_gate_in_kernel=True,
            A_log=w.A_log,
            dt_bias=w.dt_bias,
            state_v_first=True,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            **self.gate,
        )
        return self._finish(x, h, out)

    def decode(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Next tokens: one per sequence, or a few of which the next step accepts some."""
        w, h = self.weights, self._normalised(x)
        speculative = batch.steps is not None
        qkv = causal_conv1d_update(
            h @ w.qkv.t(),
            self.filters_state,
            w.filters,
            activation="silu",
            conv_state_indices=batch.slots,
            num_accepted_tokens=batch.accepted,
            query_start_loc=batch.starts if speculative else None,
            max_query_len=STEPS if speculative else -1,
        )
        q, k, v, gate, beta = self._heads(qkv, h)
        out, _ = recurrent_kda(
            q,
            k,
            v,
            gate,
            beta,
            self.state,
            batch.starts,
            batch.steps if speculative else batch.slots,
            w.A_log,
            w.dt_bias,
            batch.accepted,
            layout="TND",
            use_beta_sigmoid_in_kernel=True,
            **self.gate,
        )
        return self._finish(x, h, out)

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x.float(), (HIDDEN,), eps=EPS).bfloat16()

    def _heads(self, qkv: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q, k, v as cut-outs of one tensor, the raw gate, and beta before its sigmoid."""
        w = self.weights
        rows = qkv.view(-1, 3, HEADS, DIM)
        gate = (h @ w.gate_down.t() @ w.gate_up.t()).view(-1, HEADS, DIM)
        return rows[:, 0], rows[:, 1], rows[:, 2], gate, h @ w.beta.t()

    def _finish(self, x: torch.Tensor, h: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        w = self.weights
        gate = (h @ w.out_gate_down.t() @ w.out_gate_up.t()).view_as(out)
        return x + rms_norm_gated(out, gate, w.norm, eps=EPS).flatten(1) @ w.out.t()


Store = Callable[[torch.Tensor], torch.Tensor]


def exact(x: torch.Tensor) -> torch.Tensor:
    return x


def rounded(x: torch.Tensor) -> torch.Tensor:
    """What an engine in bf16 stores between its operators."""
    return x.bfloat16().double()


class OracleLayer:
    """The same layer for one sequence, one token per call, in float64; ``store`` may round."""

    def __init__(self, weights: Weights, store: Store, *, bounded: bool) -> None:
        self.w = {name: x.double() for name, x in vars(weights).items()}
        self.store = store
        self.bounded = bounded
        self.history = torch.zeros(WIDTH - 1, 3 * CHANNELS, dtype=torch.float64)
        self.state = torch.zeros(HEADS, DIM, DIM, dtype=torch.float64)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        w, store = self.w, self.store
        h = store(x / (x.pow(2).mean() + EPS).sqrt())
        window = torch.cat([self.history, store(w["qkv"] @ h)[None]])
        self.history = window[1:]
        mixed = (window.t() * w["filters"]).sum(1)
        q, k, v = store(mixed * mixed.sigmoid()).view(3, HEADS, DIM)
        raw = store(w["gate_up"] @ store(w["gate_down"] @ h)).view(HEADS, DIM)
        raw = raw + w["dt_bias"].view(HEADS, DIM)
        rate = w["A_log"].exp()[:, None]
        decay = -rate * (1 + raw.exp()).log()
        if self.bounded:
            decay = -5.0 * (rate * raw).sigmoid()
        beta = store(w["beta"] @ h).sigmoid()
        q = q / (q.pow(2).sum(1, keepdim=True) + 1e-6).sqrt()
        k = k / (k.pow(2).sum(1, keepdim=True) + 1e-6).sqrt()
        kept = decay.exp()[:, :, None] * self.state
        error = v - torch.einsum("hkv,hk->hv", kept, k)
        self.state = kept + beta[:, None, None] * k[:, :, None] * error[:, None, :]
        out = store(torch.einsum("hkv,hk->hv", self.state, q) * DIM**-0.5)
        gate = store(w["out_gate_up"] @ store(w["out_gate_down"] @ h)).view(HEADS, DIM)
        normed = out / (out.pow(2).mean(1, keepdim=True) + EPS).sqrt() * w["norm"]
        mixed = store(normed * gate.sigmoid()).flatten()
        return store(x + store(w["out"] @ mixed))


class Stack:
    """Layers one after the other; both kinds have the same weights for one seed."""

    def __init__(self, *, bounded: bool, layers: int = 2, slots: int = 16) -> None:
        generator = torch.Generator().manual_seed(11)
        self.weights = [Weights.random(generator) for _ in range(layers)]
        self.bounded = bounded
        self.layers = [ServedLayer(w, slots, bounded=bounded) for w in self.weights]

    def prefill(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        for layer in self.layers:
            x = layer.prefill(x, batch)
        return x

    def decode(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        for layer in self.layers:
            x = layer.decode(x, batch)
        return x

    def oracle(self, x: torch.Tensor, store: Store) -> torch.Tensor:
        """Result for all tokens of one sequence ``[T, HIDDEN]``."""
        layers = [OracleLayer(w, store, bounded=self.bounded) for w in self.weights]
        rows = []
        for token in x.double():
            for layer in layers:
                token = layer(token)
            rows.append(token)
        return torch.stack(rows)
