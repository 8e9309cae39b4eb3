"""Inputs of Kimi Delta Attention, and the sequences that they consist of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

LAYOUTS = ("BSND", "BNSD", "TND", "NTD")
# What g is: the gate itself, the gate itself above -5, or the argument of an activation.
GATES = ("given", "given_bounded", "softplus", "bounded")
OUTPUTS = ("attn_out", "final_state", "gk", "Aqk", "Akk", "w", "u", "qg", "kg", "v_new", "h")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small operations lose more to waiting threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class KdaProblem:
    """A call of ``chunk_kda_fwd``, from which its arguments follow.

    Attributes:
        lengths: Tokens of each sequence; without ``packed`` all alike, one per batch entry.
        packed: Whether the sequences share one token axis and ``cu_seqlens`` separates them.
        heads: H and HV.
        head_dims: K and V.
        strength: Multiplies the gates.
        raw_beta: Whether beta passes through a sigmoid in the kernel.
        beta_limit: Beta lies between 0 and this if it is not raw.
    """

    lengths: tuple[int, ...] = (150,)
    packed: bool = False
    heads: tuple[int, int] = (1, 2)
    head_dims: tuple[int, int] = (64, 64)
    chunk_size: int = 64
    layout: str = "BSND"
    dtype: torch.dtype = torch.bfloat16
    gate: str = "softplus"
    strength: float = 1.0
    has_initial_state: bool = True
    state_v_first: bool = False
    l2norm: bool = False
    raw_beta: bool = False
    allow_neg_eigval: bool = False
    beta_limit: float = 1.0
    g_dtype: torch.dtype = torch.float32
    beta_dtype: torch.dtype = torch.float32
    has_dt_bias: bool = True
    lower_bound: float | None = None
    seed: int = 0

    def __str__(self) -> str:
        lengths = "x".join(map(str, self.lengths[:6]))
        flags = [
            name
            for name in ("packed", "has_initial_state", "state_v_first", "l2norm", "raw_beta")
            if getattr(self, name)
        ]
        dims = f"{self.heads[0]}of{self.heads[1]}-K{self.head_dims[0]}V{self.head_dims[1]}"
        form = f"{self.layout}-{self.gate}x{self.strength:g}-C{self.chunk_size}"
        return "-".join((form, lengths, dims, str(self.dtype)[6:], *flags))

    def but(self, **changes: Any) -> KdaProblem:
        return replace(self, **changes)

    @property
    def scale(self) -> float:
        return self.head_dims[0] ** -0.5

    @property
    def cu_seqlens(self) -> list[int] | None:
        if not self.packed:
            return None
        bounds = [0]
        for length in self.lengths:
            bounds.append(bounds[-1] + length)
        return bounds

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``chunk_kda_fwd`` by name."""
        with one_thread():
            return self._arguments()

    def _arguments(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        def uniform(*shape: int) -> torch.Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        if not self.packed and len(set(self.lengths)) > 1:
            raise ValueError("sequences of a dense batch have one length")
        batch = 1 if self.packed else len(self.lengths)
        tokens = sum(self.lengths) if self.packed else self.lengths[0]
        h, hv = self.heads
        k_dim, v_dim = self.head_dims
        q, k = normal(batch, tokens, h, k_dim), normal(batch, tokens, h, k_dim)
        if not self.l2norm:
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        v = normal(batch, tokens, hv, v_dim)
        beta = normal(batch, tokens, hv)
        if not self.raw_beta:
            beta = self.beta_limit * torch.sigmoid(beta)
        g = normal(batch, tokens, hv, k_dim)
        options: dict[str, Any] = {}
        if self.gate.startswith("given"):
            g = functional.logsigmoid(g) * self.strength
            if self.gate == "given_bounded":
                g = g.clamp(-5, 0)
        else:
            g = g * self.strength
            # The range in which models start: rates between 1 and 16.
            options["A_log"] = torch.log(1 + 15 * uniform(hv)).float()
            options["use_gate_in_kernel"] = True
            if self.has_dt_bias:
                options["dt_bias"] = normal(hv * k_dim).float()
        if self.gate.endswith("bounded"):
            options["safe_gate"] = True
            options["lower_bound"] = self.lower_bound
        if self.has_initial_state:
            shape = (v_dim, k_dim) if self.state_v_first else (k_dim, v_dim)
            options["initial_state"] = normal(len(self.lengths), hv, *shape).float()
        if self.packed:
            options["cu_seqlens"] = torch.tensor(self.cu_seqlens)
        return {
            "q": in_layout(q.to(self.dtype), self.layout),
            "k": in_layout(k.to(self.dtype), self.layout),
            "v": in_layout(v.to(self.dtype), self.layout),
            "g": in_layout(g.to(self.g_dtype), self.layout),
            "beta": in_layout(beta.to(self.beta_dtype), self.layout),
            "scale": self.scale,
            "chunk_size": self.chunk_size,
            "layout": self.layout,
            "state_v_first": self.state_v_first,
            "use_qk_l2norm_in_kernel": self.l2norm,
            "use_beta_sigmoid_in_kernel": self.raw_beta,
            "allow_neg_eigval": self.allow_neg_eigval,
            **options,
        }


def in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """``[B, T, heads, ...]`` in another layout, contiguous."""
    if layout in ("BNSD", "NTD"):
        x = x.transpose(1, 2)
    return (x[0] if layout in ("TND", "NTD") else x).contiguous()


def from_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """View ``[B, T, heads, ...]`` of a tensor in ``layout``."""
    if layout in ("TND", "NTD"):
        x = x[None]
    return x.transpose(1, 2) if layout in ("BNSD", "NTD") else x


def tokens_of(arguments: dict[str, Any], tokens: slice) -> dict[str, Any]:
    """Return the call for some of the tokens of a dense call, all else as it was."""
    part = dict(arguments)
    layout = arguments["layout"]
    for name in ("q", "k", "v", "g", "beta"):
        part[name] = in_layout(from_layout(arguments[name], layout)[:, tokens], layout)
    return part


def recurrent_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Drop what the recurrent form does not take."""
    return {name: value for name, value in arguments.items() if name != "chunk_size"}
