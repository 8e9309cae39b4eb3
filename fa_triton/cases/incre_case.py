"""A case of ``incre_flash_attention`` as its file states it."""

from __future__ import annotations

from typing import Literal

import msgspec

from fa_triton.cases.case import Ours, Range

OPERATOR = "incre_flash_attention"


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor by shape and dtype.

    Attributes:
        shape: Its axes.
        dtype: In CANN's words: FLOAT16, BF16, INT8 …
        range: Bounds of uniform values; by default the argument decides.
        values: The values themselves, row by row.
    """

    shape: list[int]
    dtype: str
    range: Range | None = None
    values: list[int] | None = None


class IncreCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of ``incre_flash_attention`` and whether CANN's operator takes it.

    Attributes:
        id: Name of the case.
        group: Name of the list it comes from.
        operator: Always the same word: it marks the row.
        expect: ``SUCCESS``, or another word for a refusal.
        query: Queries; a case without them describes no call.
        key: Keys, a tensor or a list of them.
        value: Values.
        actual_seq_lengths: Key lengths; a tensor without values stands for full ones.
        attention_out: The result as the case has it.
        ours: What this library does with the case if that is not plain.

    The other fields are arguments of the operator.
    """

    id: str
    group: str = ""
    operator: Literal["incre_flash_attention"]
    expect: str = "SUCCESS"
    query: TensorSpec | None = None
    key: TensorSpec | list[TensorSpec] | None = None
    value: TensorSpec | list[TensorSpec] | None = None
    pse_shift: TensorSpec | None = None
    atten_mask: TensorSpec | None = None
    actual_seq_lengths: list[int] | TensorSpec | None = None
    antiquant_scale: TensorSpec | None = None
    antiquant_offset: TensorSpec | None = None
    block_table: TensorSpec | None = None
    kv_padding_size: TensorSpec | None = None
    quant_scale2: TensorSpec | None = None
    quant_offset2: TensorSpec | None = None
    dequant_scale1: TensorSpec | None = None
    quant_scale1: TensorSpec | None = None
    dequant_scale2: TensorSpec | None = None
    num_heads: int = 1
    scale_value: float = 1.0
    input_layout: str = "BSH"
    num_key_value_heads: int = 0
    block_size: int = 0
    inner_precise: int = 1
    antiquant_mode: str | None = None
    masked_row: str = "zero"
    softcap: float = 0.0
    win_left: int = -1
    attention_out: TensorSpec | None = None
    ours: Ours = Ours()

    @property
    def succeeds(self) -> bool:
        """Whether the file expects the call to be taken."""
        return self.expect == "SUCCESS"

    def __str__(self) -> str:
        """Describe the call in one short line."""
        if self.query is None or self.key is None:
            return "no call"
        first = self.key[0] if isinstance(self.key, list) else self.key
        heads = f"N{self.num_heads}"
        if self.num_key_value_heads not in (0, self.num_heads):
            heads += f"/{self.num_key_value_heads}"
        words = [
            self.input_layout,
            self.query.dtype,
            heads,
            f"q {_axes(self.query)}",
            f"kv {_axes(first)}",
            *(() if first.dtype == self.query.dtype else (first.dtype,)),
            *(word for name, word in _FEATURES if getattr(self, name) is not None),
        ]
        return " ".join(words)


_FEATURES = (
    ("block_table", "pages"),
    ("atten_mask", "mask"),
    ("pse_shift", "bias"),
    ("kv_padding_size", "left padding"),
    ("quant_scale2", "int8 result"),
)


def _axes(tensor: TensorSpec) -> str:
    return "x".join(map(str, tensor.shape))
