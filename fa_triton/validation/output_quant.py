"""Scale and offset that turn the result into int8."""

from __future__ import annotations

import torch

from fa_triton.incremental_problem import OutputQuant
from fa_triton.validation.optional_tensors import as_given
from fa_triton.validation.tensors import check_device, refuse_gradient


def check_output_quant(
    quant_scale2: object,
    quant_offset2: object,
    *,
    num_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[OutputQuant | None, bool]:
    """Check scale and offset of the result.

    Args:
        quant_scale2: The argument: one element, or one per column of all query heads.
        quant_offset2: The argument, of the same shape and dtype.
        num_heads: Query heads.
        head_dim: D.
        dtype: Of the query.
        device: Of the query.

    Returns:
        How the result is scaled, None for a result that is not, and whether there is an offset.
    """
    scale = as_given("quant_scale2", quant_scale2)
    offset = as_given("quant_offset2", quant_offset2)
    if scale is None:
        if offset is not None:
            raise ValueError(
                "`quant_scale2` must be given with quant_offset2 (it makes the result int8), got "
                "None; use a scale of 1"
            )
        return None, False
    _check_tensor("quant_scale2", scale, dtype, device)
    columns = num_heads * head_dim
    if scale.numel() not in (1, columns):
        raise ValueError(
            f"`quant_scale2` must have 1 element or {columns}, one per column of the query heads "
            f"(num_heads * D), got {scale.numel()} in shape {tuple(scale.shape)}"
        )
    if offset is not None:
        _check_tensor("quant_offset2", offset, dtype, device)
        if offset.dtype != scale.dtype:
            raise TypeError(
                f"`quant_offset2` must have the dtype of quant_scale2, {scale.dtype}, got "
                f"{offset.dtype}"
            )
        if offset.shape != scale.shape:
            raise ValueError(
                f"`quant_offset2` must have the shape of quant_scale2, {tuple(scale.shape)}, got "
                f"{tuple(offset.shape)}"
            )
    return ("per_tensor" if scale.numel() == 1 else "per_channel"), offset is not None


def _check_tensor(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, device: torch.device
) -> None:
    allowed = [torch.float32]
    if dtype == torch.bfloat16:
        allowed.append(torch.bfloat16)
    if tensor.dtype not in allowed:
        told = " or ".join(str(one) for one in allowed)
        raise TypeError(
            f"`{name}` must have dtype {told} with a query of {dtype}, got {tensor.dtype}"
        )
    refuse_gradient(name, tensor)
    check_device(name, tensor, device, like="query")
