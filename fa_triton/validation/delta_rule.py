"""What every operator of the gated delta rule checks: q, k, v, g, beta, gate options, states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from fa_triton.delta_rule.layouts import (
    KDA_LAYOUT_SHAPES,
    KDA_LAYOUTS,
    kda_extents,
    without_dim,
)
from fa_triton.validation.scalars import as_flag, as_float, one_of
from fa_triton.validation.tensors import (
    check_dense_last_axis,
    check_device,
    check_is_tensor,
    check_reach,
    check_small_tensor,
    refuse_gradient,
)

Gate = Literal["given", "softplus", "bounded"]

INPUT_DTYPES = (torch.float16, torch.bfloat16)
GATE_DTYPES = (torch.float32, torch.bfloat16)
DEFAULT_LOWER_BOUND = -5.0
MAX_HEADS = 128


@dataclass(frozen=True)
class DeltaRuleSizes:
    """Sizes and dtypes of q, k, v, g and beta by meaning."""

    batch_size: int
    num_tokens: int
    num_heads: int
    num_v_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    gate_dtype: torch.dtype
    beta_dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class GateOptions:
    """How raw gates become decays.

    Attributes:
        gate: ``given``: g is the natural-log decay; ``softplus``; ``bounded``.
        is_bounded: Whether every decay is at least ``lower_bound``, from -5 on.
        lower_bound: Of the bounded gate, natural log.
        has_dt_bias: Whether a bias joins the raw gate.
    """

    gate: Gate
    is_bounded: bool
    lower_bound: float
    has_dt_bias: bool


def check_layout(layout: object) -> str:
    """Return the layout, one of BSND, BNSD, TND, NTD."""
    return one_of("layout", layout, tuple(KDA_LAYOUTS))


def check_input_forms(
    q: object, k: object, v: object, g: object, beta: object, layout: object
) -> None:
    """Check what does not depend on sizes, while a graph for many sizes is traced."""
    name = check_layout(layout)
    for operand, value, dtypes in (
        ("q", q, INPUT_DTYPES),
        ("k", k, INPUT_DTYPES),
        ("v", v, INPUT_DTYPES),
        ("g", g, GATE_DTYPES),
    ):
        _check_operand_form(operand, value, name, dtypes)
    _check_beta_form(beta, name)


def check_delta_rule_inputs(
    q: object, k: object, v: object, g: object, beta: object, layout: str, *, gate_name: str = "g"
) -> DeltaRuleSizes:
    """Check the five tensors alone and together.

    Args:
        q: Queries ``[.., H, K]`` in ``layout``, fp16 or bf16, dense in the last axis.
        k: Keys, shape and dtype of q.
        v: Values ``[.., HV, V]``, dtype of q.
        g: Gates ``[.., HV, K]``, fp32 or bf16.
        beta: ``[.., HV]``, fp32 or bf16.
        layout: Of all five.
        gate_name: The caller's name of g.
    """
    q_tensor = _check_operand("q", q, layout, INPUT_DTYPES)
    k_tensor = _check_operand("k", k, layout, INPUT_DTYPES)
    v_tensor = _check_operand("v", v, layout, INPUT_DTYPES)
    g_tensor = check_gate_tensor(gate_name, g, layout)
    beta_tensor = _check_beta(beta, layout)
    for name, tensor in (("k", k_tensor), ("v", v_tensor)):
        if tensor.dtype != q_tensor.dtype:
            raise TypeError(
                f"`{name}` must have the dtype of q, {q_tensor.dtype}, got {tensor.dtype}"
            )
    for name, tensor in (("k", k_tensor), ("v", v_tensor), (gate_name, g_tensor)):
        check_device(name, tensor, q_tensor.device)
    check_device("beta", beta_tensor, q_tensor.device)
    if k_tensor.shape != q_tensor.shape:
        raise ValueError(
            f"`k` must have the shape of q, {tuple(q_tensor.shape)}, got {tuple(k_tensor.shape)}"
        )
    q_sizes, v_sizes = kda_extents(q_tensor, layout), kda_extents(v_tensor, layout)
    if not q_sizes.outer:
        raise ValueError(f"`q` must have a batch entry at least, got shape {tuple(q_tensor.shape)}")
    check_kda_heads(q_sizes.heads, v_sizes.heads)
    check_kda_dim("q", q_sizes.head_dim)
    check_kda_dim("v", v_sizes.head_dim)
    rows = (q_sizes.outer, q_sizes.tokens)
    if (v_sizes.outer, v_sizes.tokens) != rows:
        raise ValueError(
            f"`v` must have the batch and token axes of q, got q {tuple(q_tensor.shape)} and v "
            f"{tuple(v_tensor.shape)} in layout {layout}"
        )
    wanted = tuple(
        q_sizes.head_dim if axis == KDA_LAYOUTS[layout].dims[0] else size
        for axis, size in enumerate(v_tensor.shape)
    )
    if tuple(g_tensor.shape) != wanted:
        raise ValueError(
            f"`{gate_name}` must have shape {wanted}, one gate per value head and key column, got "
            f"{tuple(g_tensor.shape)}"
        )
    if tuple(beta_tensor.shape) != wanted[:-1]:
        raise ValueError(
            f"`beta` must have shape {wanted[:-1]}, one number per token and value head, got "
            f"{tuple(beta_tensor.shape)}"
        )
    return DeltaRuleSizes(
        batch_size=q_sizes.outer,
        num_tokens=q_sizes.tokens,
        num_heads=q_sizes.heads,
        num_v_heads=v_sizes.heads,
        key_dim=q_sizes.head_dim,
        value_dim=v_sizes.head_dim,
        dtype=q_tensor.dtype,
        gate_dtype=g_tensor.dtype,
        beta_dtype=beta_tensor.dtype,
        device=q_tensor.device,
    )


def check_gate_tensor(name: str, value: object, layout: str) -> torch.Tensor:
    """Check a tensor of gates ``[.., HV, K]`` on its own: fp32 or bf16, any head dim."""
    return _check_operand(name, value, layout, GATE_DTYPES)


def check_gate_options(
    *,
    use_gate_in_kernel: object,
    safe_gate: object,
    lower_bound: object,
    A_log: object,
    dt_bias: object,
    num_v_heads: int,
    key_dim: int,
    device: torch.device,
) -> GateOptions:
    """Check the options of the gate; ``A_log`` is needed iff the gate is applied in the kernel."""
    in_kernel = as_flag("use_gate_in_kernel", use_gate_in_kernel)
    bounded = as_flag("safe_gate", safe_gate)
    bound = DEFAULT_LOWER_BOUND if lower_bound is None else as_float("lower_bound", lower_bound)
    if bounded and not DEFAULT_LOWER_BOUND <= bound < 0:
        raise ValueError(
            f"`lower_bound` must lie in [-5, 0) with safe_gate=True, got {bound}; use "
            "safe_gate=False for stronger gates"
        )
    if not in_kernel:
        for name, value in (("A_log", A_log), ("dt_bias", dt_bias)):
            if value is not None:
                raise ValueError(
                    f"`{name}` must be None with use_gate_in_kernel=False, got a value; g then is "
                    "the natural-log decay itself"
                )
        return GateOptions("given", bounded, bound, False)
    if A_log is None:
        raise ValueError("`A_log` must be given with use_gate_in_kernel=True, got None")
    _check_table("A_log", A_log, num_v_heads, "one per value head", device)
    if dt_bias is not None:
        _check_table("dt_bias", dt_bias, num_v_heads * key_dim, "HV * K", device)
    return GateOptions("bounded" if bounded else "softplus", bounded, bound, dt_bias is not None)


def check_beta_options(use_beta_sigmoid: object, allow_neg_eigval: object) -> tuple[bool, float]:
    """Return (whether beta goes through a sigmoid in the kernel, the factor on it)."""
    sigmoid = as_flag("use_beta_sigmoid_in_kernel", use_beta_sigmoid)
    negative = as_flag("allow_neg_eigval", allow_neg_eigval)
    if negative and not sigmoid:
        raise ValueError(
            "`allow_neg_eigval` must be False without use_beta_sigmoid_in_kernel, got True; pass "
            "beta in [0, 2] instead"
        )
    return sigmoid, 2.0 if negative else 1.0


def check_scale(scale: object, key_dim: int) -> float:
    """Return the factor on the result; None is ``K ** -0.5``."""
    return 1 / math.sqrt(key_dim) if scale is None else as_float("scale", scale)


def _check_operand(
    name: str, value: object, layout: str, dtypes: tuple[torch.dtype, ...]
) -> torch.Tensor:
    tensor = _check_operand_form(name, value, layout, dtypes)
    axes = KDA_LAYOUTS[layout]
    check_dense_last_axis(name, tensor)
    check_reach(name, tensor.stride(axes.token), tensor.shape[axes.token])
    return tensor


def _check_operand_form(
    name: str, value: object, layout: str, dtypes: tuple[torch.dtype, ...]
) -> torch.Tensor:
    tensor = _check_form(name, value, dtypes)
    axes = KDA_LAYOUTS[layout]
    if tensor.ndim != axes.rank:
        raise ValueError(
            f"`{name}` must have {axes.rank} axes {KDA_LAYOUT_SHAPES[layout]} in layout {layout}, "
            f"got shape {tuple(tensor.shape)}"
        )
    return tensor


def _check_beta(value: object, layout: str) -> torch.Tensor:
    tensor = _check_beta_form(value, layout)
    axes = KDA_LAYOUTS[layout]
    check_reach("beta", tensor.stride(axes.token), tensor.shape[axes.token])
    return tensor


def _check_beta_form(value: object, layout: str) -> torch.Tensor:
    tensor = _check_form("beta", value, GATE_DTYPES)
    axes = KDA_LAYOUTS[layout]
    if tensor.ndim != axes.rank - 1:
        raise ValueError(
            f"`beta` must have {axes.rank - 1} axes {without_dim(layout)} in layout {layout}, got "
            f"shape {tuple(tensor.shape)}"
        )
    return tensor


def _check_form(name: str, value: object, dtypes: tuple[torch.dtype, ...]) -> torch.Tensor:
    tensor = check_is_tensor(name, value)
    if tensor.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"`{name}` must have dtype {allowed}, got {tensor.dtype}")
    refuse_gradient(name, tensor)
    return tensor


def check_kda_heads(num_heads: int, num_v_heads: int) -> None:
    """Every q/k head serves the same number of value heads."""
    if not 0 < num_heads <= num_v_heads <= MAX_HEADS or num_v_heads % num_heads:
        raise ValueError(
            f"the heads of v must be a multiple of those of q, at most {MAX_HEADS}, got "
            f"{num_heads} for q and {num_v_heads} for v"
        )


def check_kda_dim(name: str, size: int) -> None:
    """Head dims are multiples of 16 up to 256."""
    if size % 16 or not 16 <= size <= 256:
        raise ValueError(
            f"the head dim of {name} must be a multiple of 16 from 16 to 256, got {size}"
        )


def _check_table(name: str, value: object, size: int, meaning: str, device: torch.device) -> None:
    """A flat fp32 table; other shapes with as many elements count too, as models store them."""
    tensor = check_is_tensor(name, value)
    if tensor.numel() != size:
        raise ValueError(
            f"`{name}` must have {size} elements, {meaning}, got shape {tuple(tensor.shape)}"
        )
    check_small_tensor(
        name,
        tensor,
        dtype=torch.float32,
        shape=tuple(tensor.shape),
        device=device,
        meaning=f"({size},)",
    )
    refuse_gradient(name, tensor)
