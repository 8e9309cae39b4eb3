"""The merge of two results of attention over disjoint keys, elementwise in fp32."""

from __future__ import annotations

import torch


def merge_states(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    layout: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge checked results as ``merge_attn_states`` says."""
    empty_a, empty_b = torch.isinf(lse_a), torch.isinf(lse_b)
    filled_a = lse_a.masked_fill(empty_a, -torch.inf)
    filled_b = lse_b.masked_fill(empty_b, -torch.inf)
    m = torch.maximum(filled_a, filled_b)
    m = m.masked_fill(empty_a & empty_b, 0.0)
    weight_a, weight_b = torch.exp(filled_a - m), torch.exp(filled_b - m)
    total = weight_a + weight_b
    none = total == 0
    lse = (m + torch.log(total)).masked_fill(none, torch.inf)
    total = total.masked_fill(none, 1.0)
    # The result of an empty part may be anything, NaN included: select, do not multiply by 0.
    part_a = _rows(weight_a / total, layout) * out_a.float()
    part_b = _rows(weight_b / total, layout) * out_b.float()
    out = torch.where(_rows(empty_a, layout), 0.0, part_a)
    out = out + torch.where(_rows(empty_b, layout), 0.0, part_b)
    return out.to(out_a.dtype), lse


def _rows(per_row: torch.Tensor, layout: str) -> torch.Tensor:
    """Bring values per row from the order of the log-sum-exp into that of the result."""
    if layout != "BNSD":
        per_row = per_row.transpose(-1, -2)
    return per_row.unsqueeze(-1)
