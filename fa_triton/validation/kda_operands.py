"""What both forms of Kimi Delta Attention check alike: operands, gate and beta."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.delta_rule.layouts import KDA_LAYOUT_SHAPES, KDA_LAYOUTS, kda_extents, without_dim
from fa_triton.layout import Extents
from fa_triton.validation.scalars import as_flag, as_float, one_of
from fa_triton.validation.tensors import (
    FLOAT_DTYPES,
    check_dense_last_axis,
    check_device,
    check_is_tensor,
    check_small_tensor,
    refuse_gradient,
)

SUBJECT = "Kimi Delta Attention"
DEFAULT_LOWER_BOUND = -5.0
# modes of the gate, as kernels/_kda_gate.py counts them
GATE_GIVEN = 0
GATE_SOFTPLUS = 1
GATE_BOUNDED = 2


@dataclass(frozen=True)
class KdaOperands:
    """Sizes and dtypes of the tensors that hold one row per token.

    Attributes:
        layout: Name of their layout.
        outer: Batch entries; 1 for packed layouts.
        num_tokens: Tokens of a batch entry, or of all packed sequences.
        num_heads_qk: Heads of q and k.
        num_heads: Value heads, a multiple of ``num_heads_qk``.
        dim_k: Head dim of q, k and the gate.
        dim_v: Head dim of v.
        dtype: Of q, k and v.
        gate_dtype: Of the gate.
        beta_dtype: Of beta.
        device: Of every tensor.
    """

    layout: str
    outer: int
    num_tokens: int
    num_heads_qk: int
    num_heads: int
    dim_k: int
    dim_v: int
    dtype: torch.dtype
    gate_dtype: torch.dtype
    beta_dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class KdaGate:
    """How decays and betas come from their stored form.

    Attributes:
        mode: ``GATE_GIVEN``, ``GATE_SOFTPLUS`` or ``GATE_BOUNDED``.
        lower_bound: Of the bounded gate, natural log.
        has_beta_sigmoid: Whether beta is stored before its sigmoid.
        beta_scale: Factor of that sigmoid, 1 or 2.
    """

    mode: int
    lower_bound: float
    has_beta_sigmoid: bool
    beta_scale: float


def check_kda_operands(
    q: object, k: object, v: object, gate: object, beta: object, layout: object, *, gate_name: str
) -> KdaOperands:
    """Check the tensors with one row per token, alone and against each other.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        gate: Gate per channel of K.
        beta: Step size per value head.
        layout: Name of their layout.
        gate_name: Name of the argument ``gate``.
    """
    layout = one_of("layout", layout, tuple(KDA_LAYOUTS))
    q = _check_rows("q", q, layout)
    k = _check_rows("k", k, layout)
    v = _check_rows("v", v, layout)
    gate = _check_rows(gate_name, gate, layout)
    beta = _check_beta_rows(beta, layout)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise TypeError(f"`{name}` must have the dtype of q, {q.dtype}, got {tensor.dtype}")
    for name, tensor in (("k", k), ("v", v), (gate_name, gate), ("beta", beta)):
        check_device(name, tensor, q.device)
    sizes, sizes_v = kda_extents(q, layout), kda_extents(v, layout)
    _check_sizes(sizes, sizes_v)
    if k.shape != q.shape:
        raise ValueError(f"`k` must have the shape of q, {tuple(q.shape)}, got {tuple(k.shape)}")
    if (sizes_v.outer, sizes_v.tokens) != (sizes.outer, sizes.tokens):
        raise ValueError(
            f"`v` must have the batch and tokens of q, got q {tuple(q.shape)} and "
            f"v {tuple(v.shape)} in layout {layout}"
        )
    _check_per_head(gate_name, gate, (*v.shape[:-1], sizes.head_dim), layout)
    _check_per_head("beta", beta, tuple(v.shape[:-1]), layout)
    return KdaOperands(
        layout=layout,
        outer=sizes.outer,
        num_tokens=sizes.tokens,
        num_heads_qk=sizes.heads,
        num_heads=sizes_v.heads,
        dim_k=sizes.head_dim,
        dim_v=sizes_v.head_dim,
        dtype=q.dtype,
        gate_dtype=gate.dtype,
        beta_dtype=beta.dtype,
        device=q.device,
    )


def check_kda_gate(
    operands: KdaOperands,
    *,
    use_gate_in_kernel: object,
    safe_gate: object,
    lower_bound: object,
    A_log: object,
    dt_bias: object,
    use_beta_sigmoid_in_kernel: object,
    allow_neg_eigval: object,
) -> KdaGate:
    """Check how gate and beta are activated."""
    in_kernel = as_flag("use_gate_in_kernel", use_gate_in_kernel)
    is_bounded = as_flag("safe_gate", safe_gate)
    bound = DEFAULT_LOWER_BOUND if lower_bound is None else as_float("lower_bound", lower_bound)
    if not -5.0 <= bound < 0.0:
        raise ValueError(f"`lower_bound` must lie in [-5, 0), got {bound}")
    for name, value in (("A_log", A_log), ("dt_bias", dt_bias)):
        if value is not None and not in_kernel:
            raise ValueError(
                f"`{name}` must be None without use_gate_in_kernel, got a tensor; the gate is "
                "then taken as log decay"
            )
    if in_kernel:
        if A_log is None:
            raise ValueError("`A_log` must be given with use_gate_in_kernel, got None")
        _check_parameter("A_log", A_log, operands.num_heads, "HV", operands.device)
        if dt_bias is not None:
            count = operands.num_heads * operands.dim_k
            _check_parameter("dt_bias", dt_bias, count, "HV * K", operands.device)
    has_sigmoid = as_flag("use_beta_sigmoid_in_kernel", use_beta_sigmoid_in_kernel)
    negative = as_flag("allow_neg_eigval", allow_neg_eigval)
    if negative and not has_sigmoid:
        raise ValueError(
            "`allow_neg_eigval` must be False without use_beta_sigmoid_in_kernel, got True; "
            "double beta before the call"
        )
    mode = GATE_GIVEN
    if in_kernel:
        mode = GATE_BOUNDED if is_bounded else GATE_SOFTPLUS
    return KdaGate(mode, bound, has_sigmoid, 2.0 if negative else 1.0)


def _check_rows(name: str, value: object, layout: str) -> torch.Tensor:
    tensor = check_is_tensor(name, value)
    _check_float(name, tensor)
    if tensor.ndim != KDA_LAYOUTS[layout].rank:
        raise ValueError(
            f"`{name}` must have axes {KDA_LAYOUT_SHAPES[layout]} in layout {layout}, "
            f"got shape {tuple(tensor.shape)}"
        )
    check_dense_last_axis(name, tensor)
    return tensor


def _check_beta_rows(value: object, layout: str) -> torch.Tensor:
    tensor = check_is_tensor("beta", value)
    _check_float("beta", tensor)
    if tensor.ndim != KDA_LAYOUTS[layout].rank - 1:
        raise ValueError(
            f"`beta` must have axes {without_dim(layout)} in layout {layout}, "
            f"got shape {tuple(tensor.shape)}"
        )
    return tensor


def _check_float(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in FLOAT_DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)
        raise TypeError(f"`{name}` must have dtype {allowed}, got {tensor.dtype}")
    refuse_gradient(name, tensor, subject=SUBJECT)


def _check_sizes(sizes: Extents, sizes_v: Extents) -> None:
    for name, size in (("batch", sizes.outer), ("heads", sizes.heads), ("heads", sizes_v.heads)):
        if size < 1:
            raise ValueError(f"the {name} axis of q and v must not be empty, got {size}")
    for name, dim in (("q", sizes.head_dim), ("v", sizes_v.head_dim)):
        if dim % 16 or not 16 <= dim <= 256:
            raise ValueError(
                f"the head dim of `{name}` must be a multiple of 16 from 16 to 256, got {dim}"
            )
    if sizes_v.heads % sizes.heads:
        raise ValueError(
            f"the number of heads of `v` must be a multiple of those of q, got {sizes_v.heads} "
            f"and {sizes.heads}"
        )


def _check_per_head(name: str, tensor: torch.Tensor, shape: tuple[int, ...], layout: str) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"`{name}` must have shape {shape}, the heads of v, in layout {layout}, "
            f"got {tuple(tensor.shape)}"
        )


def _check_parameter(
    name: str, value: object, count: int, meaning: str, device: torch.device
) -> None:
    """A parameter of the gate: fp32, contiguous, any shape with as many elements."""
    tensor = check_is_tensor(name, value)
    if tensor.numel() != count:
        raise ValueError(
            f"`{name}` must have {meaning} = {count} elements, got shape {tuple(tensor.shape)}"
        )
    check_small_tensor(
        name,
        tensor,
        dtype=torch.float32,
        shape=tuple(tensor.shape),
        device=device,
        meaning=str(tuple(tensor.shape)),
    )
    refuse_gradient(name, tensor, subject=SUBJECT)
