"""A call of ``rms_norm_gated``: validate, describe, find the rows, launch."""

from __future__ import annotations

import math

import torch

from fa_triton.device import cpu_mode, device_info
from fa_triton.launch import runner
from fa_triton.layer.gated_norm_variants import norm_form
from fa_triton.layer.reference import rms_norm_gated_by_reference
from fa_triton.validation import check_has_memory
from fa_triton.validation.gated_norm import validate_rms_norm_gated


def normalise(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "sigmoid",
) -> torch.Tensor:
    """Normalise as ``rms_norm_gated`` says."""
    problem = validate_rms_norm_gated(x, gate, weight, bias, eps=eps, activation=activation)
    if x.device.type == "cpu" and cpu_mode() == "reference":
        return rms_norm_gated_by_reference(x, gate, weight, bias, eps=eps, activation=activation)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    from fa_triton.kernels.rms_norm_gated import rms_norm_gated

    check_has_memory("x", x)
    inner = 1
    if x.ndim > 1 and not (_is_line(x) and _is_line(gate)):
        inner = x.shape[-2]
    form = norm_form(problem)
    x_rows, gate_rows, out_rows = (_rows(tensor, inner) for tensor in (x, gate, out))
    num_outer = x_rows.shape[0]
    num_tasks = -(-num_outer // int(dict(form.constants)["BLOCK_R"])) * inner
    runner(rms_norm_gated)[(min(num_tasks, device_info(x.device).num_aiv),)](
        x=x_rows,
        gate=gate_rows,
        weight=weight,
        bias=bias,
        out=out_rows,
        num_tasks=num_tasks,
        num_outer=num_outer,
        num_inner=inner,
        dim=problem.dim,
        eps=problem.eps,
        stride_xo=x_rows.stride(0),
        stride_xi=x_rows.stride(1),
        stride_go=gate_rows.stride(0),
        stride_gi=gate_rows.stride(1),
        stride_oo=out_rows.stride(0),
        stride_oi=out_rows.stride(1),
        **dict(form.constants),
        variant=form.key,
    )
    return out


def _is_line(tensor: torch.Tensor) -> bool:
    """Whether all rows are equally far apart and dense."""
    return _as_view(tensor, (-1, tensor.shape[-1])) is not None


def _rows(tensor: torch.Tensor, inner: int) -> torch.Tensor:
    """View ``[outer, inner, dim]``, copied where no such view with dense rows exists."""
    shape = (math.prod(tensor.shape[:-1]) // inner, inner, tensor.shape[-1])
    view = _as_view(tensor, shape)
    return tensor.contiguous().view(shape) if view is None else view


def _as_view(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        return None
    try:
        return tensor.view(shape)
    except RuntimeError:
        return None
