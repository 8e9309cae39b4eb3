"""Named workloads, shared by benchmarks, tests and tuning."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Workload:
    """One attention problem.

    Attributes:
        name: As in results and plots.
        q_lens: Query tokens per sequence.
        kv_lens: Key tokens per sequence.
        num_heads_q: Query heads.
        num_heads_kv: Heads of keys and values.
        head_dim: Of q, k and v.
        causal: Mask mode 3, else none.
        packed: TND tensors; else BNSD, with equal lengths.
    """

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    causal: bool
    packed: bool = False

    @property
    def batch_size(self) -> int:
        """Number of sequences."""
        return len(self.q_lens)

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.num_heads_q // self.num_heads_kv

    @property
    def flops(self) -> int:
        """Floating-point operations of both products, hidden scores not counted."""
        pairs = 0
        for q_len, kv_len in zip(self.q_lens, self.kv_lens, strict=True):
            hidden = q_len * (q_len - 1) // 2 if self.causal else 0
            pairs += q_len * kv_len - hidden
        return 4 * pairs * self.num_heads_q * self.head_dim


PREFILL = Workload(
    name="prefill",
    q_lens=(1024,),
    kv_lens=(1024,),
    num_heads_q=8,
    num_heads_kv=8,
    head_dim=128,
    causal=True,
)
DECODE = Workload(
    name="decode",
    q_lens=(1,) * 8,
    kv_lens=(4096,) * 8,
    num_heads_q=32,
    num_heads_kv=8,
    head_dim=128,
    causal=False,
)
_VARLEN_LENGTHS = (1024, 64, 512, 256, 768, 128, 384, 32)
VARLEN = Workload(
    name="varlen",
    q_lens=_VARLEN_LENGTHS,
    kv_lens=_VARLEN_LENGTHS,
    num_heads_q=8,
    num_heads_kv=8,
    head_dim=128,
    causal=True,
    packed=True,
)

WORKLOADS = {w.name: w for w in (PREFILL, DECODE, VARLEN)}


@dataclass(frozen=True)
class Tensors:
    """Inputs of a workload: BNSD or TND, with ``cu_seqlens`` for TND."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_kv: torch.Tensor | None = None


def make_tensors(
    workload: Workload, dtype: torch.dtype, device: str = "cpu", seed: int = 0
) -> Tensors:
    """Draw standard-normal inputs."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    w = workload
    if w.packed:
        return Tensors(
            q=draw(sum(w.q_lens), w.num_heads_q, w.head_dim),
            k=draw(sum(w.kv_lens), w.num_heads_kv, w.head_dim),
            v=draw(sum(w.kv_lens), w.num_heads_kv, w.head_dim),
            cu_seqlens_q=_cumulative(w.q_lens, device),
            cu_seqlens_kv=_cumulative(w.kv_lens, device),
        )
    return Tensors(
        q=draw(w.batch_size, w.num_heads_q, w.q_lens[0], w.head_dim),
        k=draw(w.batch_size, w.num_heads_kv, w.kv_lens[0], w.head_dim),
        v=draw(w.batch_size, w.num_heads_kv, w.kv_lens[0], w.head_dim),
    )


def _cumulative(lengths: tuple[int, ...], device: str) -> torch.Tensor:
    sums = [0]
    for length in lengths:
        sums.append(sums[-1] + length)
    return torch.tensor(sums, dtype=torch.int32, device=device)
