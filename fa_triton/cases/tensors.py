"""Tensors of a described call: seeded random ones to compute with, or ones without memory."""

from __future__ import annotations

from typing import Any

import torch

from fa_triton.cases.call import CaseCall, Operand, Small

SEED = 42
META = torch.device("meta")
# Random numbers are drawn in float32, so many at a time.
_CHUNK = 2**24


def make_arguments(call: CaseCall, device: torch.device, seed: int = SEED) -> dict[str, Any]:
    """Arguments of ``flash_attn``, the same for one seed on every device.

    The gaps of padded axes are NaN: a result that reads them shows it.

    Args:
        call: A call whose small tensors all have values.
        device: Where the tensors go.
        seed: Of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    arguments: dict[str, Any] = dict(call.options)
    for name, operand in (("q", call.q), ("k", call.k), ("v", call.v)):
        arguments[name] = random_operand(operand, generator, device)
    for name, tensor in call.small.items():
        if name != "metadata":
            arguments[name] = _small(name, tensor, generator).to(device)
    return arguments


def meta_arguments(call: CaseCall) -> dict[str, Any]:
    """Arguments of ``flash_attn`` on the meta device: shapes and strides without memory.

    Raises:
        RuntimeError: A shape that no tensor has, such as a negative axis.
    """
    arguments: dict[str, Any] = dict(call.options)
    for name, operand in (("q", call.q), ("k", call.k), ("v", call.v)):
        arguments[name] = _cut(
            torch.empty(_allocated(operand), dtype=operand.dtype, device=META), operand
        )
    for name, tensor in call.small.items():
        arguments[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device=META)
    return arguments


def _allocated(operand: Operand) -> tuple[int, ...]:
    return tuple(size + (axis in operand.padded_axes) for axis, size in enumerate(operand.shape))


def _cut(tensor: torch.Tensor, operand: Operand) -> torch.Tensor:
    for axis in operand.padded_axes:
        tensor = tensor.narrow(axis, 0, operand.shape[axis])
    return tensor


def random_operand(
    operand: Operand, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """Draw an operand: uniform in its range, or normal."""
    values = torch.empty(operand.shape, dtype=operand.dtype)
    for chunk in values.view(-1).split(_CHUNK):
        if operand.value_range is None:
            chunk.copy_(torch.randn(chunk.numel(), generator=generator))
        else:
            low, high = operand.value_range
            numbers = torch.rand(chunk.numel(), generator=generator)
            chunk.copy_(numbers.mul_(high - low).add_(low))
    if not operand.padded_axes:
        return values.to(device)
    whole = torch.full(_allocated(operand), torch.nan, dtype=operand.dtype, device=device)
    view = _cut(whole, operand)
    view.copy_(values)
    return view


def _small(name: str, tensor: Small, generator: torch.Generator) -> torch.Tensor:
    if tensor.values is not None:
        return torch.from_numpy(tensor.values.copy()).to(tensor.dtype)
    if name == "attn_mask":
        return torch.ones(tensor.shape, dtype=tensor.dtype).triu_(1)
    if name in ("sinks", "alibi_slopes"):
        return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
    raise ValueError(f"`{name}` must have values to compute with, got its shape alone")
