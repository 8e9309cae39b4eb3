"""The vector-only decode kernel as the compile check and the model take it."""

from __future__ import annotations

from fa_triton.compile.variant import VECTOR_ONLY, KernelVariant
from perf.model.interpreter import Launch

# keys of a tile by head dim, those that fit every device
TILES = {64: (64, 128, 256), 128: (32, 64, 128)}
_TENSORS = {
    "q": "*bf16:16",
    "k": "*bf16:16",
    "v": "*bf16:16",
    "seqused_kv": "*i32:16",
    "out": "*bf16:16",
    "softmax_lse": "*fp32:16",
}
_SCALARS = {"num_tasks": "i32", "num_heads": "i32", "softmax_scale": "fp32"}
_STRIDES = ("qb", "qn", "kb", "kn", "ks", "vb", "vn", "vs")


def vector_variant(head_dim: int, block_kv: int) -> KernelVariant:
    """Form of the kernel for a head dim and keys of a tile."""
    return KernelVariant(
        op="candidate",
        kernel="vector_decode",
        tile=f"1x{block_kv}",
        key=f"vector_decode-bf16-d{head_dim}-block_kv{block_kv}",
        jit="perf.model.candidates.vector_decode:vector_decode",
        signature={
            **_TENSORS,
            **_SCALARS,
            **{f"stride_{name}": "i32:16" for name in _STRIDES},
        },
        constants={"D": head_dim, "BLOCK_KV": block_kv},
        properties=dict.fromkeys(("A2", "A3", "A5"), VECTOR_ONLY),
    )


def vector_launch(names: tuple[str, ...], head_dim: int, keys: int) -> Launch:
    """Launch for one head of one sequence of ``keys`` keys."""
    strides = {f"stride_{name}": head_dim * keys for name in _STRIDES}
    strides |= {"stride_ks": head_dim, "stride_vs": head_dim}
    return Launch(
        names=names,
        scalars={"num_tasks": 1, "num_heads": 1, "softmax_scale": 1.0, **strides},
        contents={"seqused_kv": [keys]},
    )
