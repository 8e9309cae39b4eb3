"""Frozen description of one validated call of ``incre_flash_attention``: no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

import torch

if TYPE_CHECKING:
    from fa_triton.problem import AttnProblem

InputLayout = Literal["BSH", "BSND", "BNSD"]
MaskForm = Literal["per_sequence", "per_head", "per_query"]
AntiquantMode = Literal["per_tensor", "per_channel", "per_token", "per_token_head"]
OutputQuant = Literal["per_tensor", "per_channel"]
MaskedRow = Literal["zero", "mean"]

# What `key` and `value` may be, and what `actual_seq_lengths` may be.
Cache: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
ActualLengths: TypeAlias = torch.Tensor | Sequence[int]


class IncreOptions(TypedDict, total=False):
    """Keyword arguments of ``incre_flash_attention``."""

    pse_shift: torch.Tensor | None
    atten_mask: torch.Tensor | None
    actual_seq_lengths: ActualLengths | None
    antiquant_scale: torch.Tensor | None
    antiquant_offset: torch.Tensor | None
    block_table: torch.Tensor | None
    kv_padding_size: torch.Tensor | None
    quant_scale2: torch.Tensor | None
    quant_offset2: torch.Tensor | None
    dequant_scale1: torch.Tensor | None
    quant_scale1: torch.Tensor | None
    dequant_scale2: torch.Tensor | None
    num_heads: int
    scale_value: float
    input_layout: str
    num_key_value_heads: int
    block_size: int
    inner_precise: int
    antiquant_mode: str | None
    masked_row: str
    key_shared_prefix: torch.Tensor | None
    value_shared_prefix: torch.Tensor | None
    sinks: torch.Tensor | None
    softcap: float
    win_left: int
    return_softmax_lse: bool
    lse_includes_sink: bool
    metadata: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class IncreProblem:
    """One validated call.

    An argument that is an empty tensor counts as absent everywhere.

    Attributes:
        attn: What planner, rows and tiles see: BSH is BSND here, a list is a dense layout whose
            sequence axis is the longest of the list, the dtype is that of the query.
        input_layout: Of query, result, and keys that do not lie in pages.
        is_list: Whether key and value are one tensor per sequence.
        list_lengths: Sequence axes of such tensors.
        host_lengths: Actual key lengths of all sequences, where the host knows them; without
            ``actual_seq_lengths`` None.
        has_device_lengths: Whether a tensor holds the actual key lengths.
        broadcasts_lengths: Whether that tensor holds one length for all sequences.
        has_left_padding: Whether keys end before the padding that a device tensor tells.
        has_bias: Whether logits get ``pse_shift``.
        bias_batch: Its first axis, 1 or B; 0 without it.
        bias_heads: Its second axis, N; 0 without it.
        bias_rows: Its third axis, 1 or the query tokens; 0 without it.
        mask_form: What has a mask row of its own: a sequence, a head, or a query token.
        mask_columns: Last axis of the mask; 0 without it.
        quant: How an int8 cache is scaled; None for a cache in the query's dtype.
        has_antiquant_offset: Whether offsets are added before the scaling.
        output_quant: How the result becomes int8; None for a result in the query's dtype.
        has_quant_offset2: Whether an offset is added to the scaled result.
        masked_row: What a row is whose every key the mask hides.
        prefix_length: Keys that all sequences share before their own; 0 for none.
    """

    attn: AttnProblem
    input_layout: InputLayout
    is_list: bool
    list_lengths: tuple[int, ...] | None
    host_lengths: tuple[int, ...] | None
    has_device_lengths: bool
    broadcasts_lengths: bool
    has_left_padding: bool
    has_bias: bool
    bias_batch: int
    bias_heads: int
    bias_rows: int
    mask_form: MaskForm | None
    mask_columns: int
    quant: AntiquantMode | None
    has_antiquant_offset: bool
    output_quant: OutputQuant | None
    has_quant_offset2: bool
    masked_row: MaskedRow
    prefix_length: int

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result, which is that of the query."""
        attn = self.attn
        if self.input_layout != "BSH":
            return attn.out_shape
        return attn.batch_size, attn.seqlen_q, attn.num_heads_q * attn.head_dim

    @property
    def out_dtype(self) -> torch.dtype:
        """Dtype of the result."""
        return self.attn.dtype if self.output_quant is None else torch.int8

    @property
    def rooms(self) -> tuple[int, ...]:
        """How many keys each sequence has room for, the prefix not counted."""
        if self.list_lengths is not None:
            return self.list_lengths
        return (self.attn.seqlen_kv,) * self.attn.batch_size
