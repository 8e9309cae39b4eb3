"""Tensors as the kernels address them: strides of units and rows, packed copies, sink tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.attention.rows import RowKind, RowUnits
from fa_triton.layout import Strides, lse_strides, strides
from fa_triton.problem import AttnProblem

# Axes (…, kv head, token, head of the group, …) of a tensor whose head axis was split.
_PACKED_ORDER = {"BSND": (0, 2, 1, 3, 4), "BNSD": (0, 1, 3, 2, 4), "TND": (1, 0, 2, 3)}
_PACKED_LSE_ORDER = {"BSND": (0, 1, 3, 2), "BNSD": (0, 1, 3, 2), "TND": (0, 2, 1)}
_HEAD_AXIS = {"BSND": 2, "BNSD": 1, "TND": 1}


@dataclass(frozen=True)
class RowStrides:
    """Strides in elements: batch entry, token of a packed sequence, head unit, row."""

    batch: int
    token: int
    unit: int
    row: int


@dataclass(frozen=True)
class RowOperand:
    """A tensor of rows and its strides; ``target`` is what a packed result is copied to."""

    tensor: torch.Tensor
    strides: RowStrides
    target: torch.Tensor | None = None

    def deliver(self) -> None:
        """Copy a packed result to where it belongs."""
        if self.target is not None:
            self.target.copy_(self.tensor)


def scale_operands(
    scale: torch.Tensor | None, offset: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Tables of stored integers by the kernel's names; those given are ``[2, ..]``, K and V."""
    operands = {}
    for name, tables in (("scale", scale), ("offset", offset)):
        if tables is not None:
            operands |= {f"k_{name}": tables[0], f"v_{name}": tables[1]}
    return operands


def row_strides(by_meaning: Strides, units: RowUnits) -> RowStrides:
    """Strides of rows that need no packing."""
    if units.kind is RowKind.HEADS:
        unit = units.group * by_meaning.head
        return RowStrides(by_meaning.outer, by_meaning.token, unit, by_meaning.head)
    return RowStrides(by_meaning.outer, by_meaning.token, by_meaning.head, by_meaning.token)


def query_operand(q: torch.Tensor, problem: AttnProblem, units: RowUnits) -> RowOperand:
    """Rows of q, packed if their kind asks for it."""
    if units.kind is not RowKind.PACKED:
        return RowOperand(q, row_strides(strides(q, problem.layout_q), units))
    packed = _packed_view(q, problem.layout_q, problem).contiguous()
    return RowOperand(packed, _packed_strides(packed, problem.layout_q))


def output_operand(
    out: torch.Tensor, problem: AttnProblem, units: RowUnits, fill: bool
) -> RowOperand:
    """Rows of the result; ``fill`` clears rows that no row block covers."""
    if units.kind is not RowKind.PACKED:
        if fill:
            out.zero_()
        return RowOperand(out, row_strides(strides(out, problem.layout_out), units))
    target = _packed_view(out, problem.layout_out, problem)
    packed = torch.zeros if fill else torch.empty
    rows = packed(target.shape, dtype=out.dtype, device=out.device)
    return RowOperand(rows, _packed_strides(rows, problem.layout_q), target)


def lse_operand(lse: torch.Tensor, problem: AttnProblem, units: RowUnits, fill: bool) -> RowOperand:
    """Rows of the log-sum-exp; ``fill`` sets +inf where no row block covers a row."""
    if units.kind is not RowKind.PACKED:
        if fill:
            lse.fill_(torch.inf)
        return RowOperand(lse, row_strides(lse_strides(lse, problem.layout_q), units))
    split = lse.unflatten(-2, (problem.num_heads_kv, problem.group))
    target = split.permute(_PACKED_LSE_ORDER[problem.layout_q])
    rows = torch.empty(target.shape, dtype=lse.dtype, device=lse.device)
    if fill:
        rows.fill_(torch.inf)
    return RowOperand(rows, _packed_strides(rows.unsqueeze(-1), problem.layout_q), target)


def per_key_operand(view: torch.Tensor, problem: AttnProblem, units: RowUnits) -> RowOperand:
    """Rows of a tensor ``[B, N, Sq, S']`` that has a number per key, in the order of those of q.

    Axes along which nothing changes may have a stride of 0. Packed rows that differ need a copy.
    """
    if view.stride(1) == view.stride(2) == 0:
        return RowOperand(view, RowStrides(view.stride(0), 0, 0, 0))
    if units.kind is not RowKind.PACKED:
        by = Strides(outer=view.stride(0), token=view.stride(2), head=view.stride(1))
        return RowOperand(view, row_strides(by, units))
    split = view.unflatten(1, (problem.num_heads_kv, problem.group))
    shared_heads = split.stride(1) == 0
    packed = split[:, :1] if shared_heads else split
    packed = packed.permute(_PACKED_ORDER["BNSD"]).contiguous()
    rows = packed.expand(-1, problem.num_heads_kv, -1, -1, -1)
    return RowOperand(packed, _packed_strides(rows, "BNSD"))


def head_table(values: torch.Tensor, units: RowUnits, rows: int) -> tuple[torch.Tensor, int]:
    """Values per query head as the kernels read them, and the stride between units.

    Merged rows run through the heads of a group again and again: the table repeats them over
    ``rows`` rows and one group more, so that a tile may start at any head.
    """
    if units.kind in (RowKind.ONE_HEAD, RowKind.HEAD_MAJOR):
        return values.contiguous(), 1
    repeats = -(-rows // units.group) + 1
    table = values.view(units.num_units, units.group).repeat(1, repeats)
    return table, table.shape[1]


def _packed_view(tensor: torch.Tensor, layout: str, problem: AttnProblem) -> torch.Tensor:
    """View of a tensor with heads as ``(…, Nkv, tokens, group, D)``."""
    split = tensor.unflatten(_HEAD_AXIS[layout], (problem.num_heads_kv, problem.group))
    return split.permute(_PACKED_ORDER[layout])


def _packed_strides(packed: torch.Tensor, layout_q: str) -> RowStrides:
    """Strides of a dense ``(…, Nkv, tokens, group, D)``: row after row without a gap."""
    unit, token, row = packed.stride(-4), packed.stride(-3), packed.stride(-2)
    return RowStrides(0 if layout_q == "TND" else packed.stride(0), token, unit, row)
