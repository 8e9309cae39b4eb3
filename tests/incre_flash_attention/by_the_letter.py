"""``incre_flash_attention`` element by element: every number is looked up where the call has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.reference.by_the_letter import attend_row


class Letter:
    """A call whose elements are read one at a time, by the words of the specification."""

    def __init__(self, **call: Any) -> None:
        self.call = call
        self.query = call["query"]
        self.layout = call.get("input_layout", "BSH")
        self.heads = call["num_heads"]
        self.kv_heads = call.get("num_key_value_heads") or self.heads
        first = self.query.shape
        self.batch = first[0]
        self.tokens = first[2] if self.layout == "BNSD" else first[1]
        self.dim = first[-1] // self.heads if self.layout == "BSH" else first[-1]
        self.is_paged = self.given("block_table") is not None
        prefix = self.given("key_shared_prefix")
        self.prefix = 0 if prefix is None else prefix.shape[2]

    def given(self, name: str) -> Any:
        value = self.call.get(name)
        if isinstance(value, torch.Tensor) and value.numel() == 0:
            return None
        return value

    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Result in the shape of the query, before rounding to its dtype, and log-sum-exp."""
        out = torch.zeros(self.query.shape, dtype=torch.float64)
        lse = torch.zeros((self.batch, self.heads, self.tokens), dtype=torch.float64)
        for b in range(self.batch):
            columns = self.columns(b)
            for n in range(self.heads):
                h = n // (self.heads // self.kv_heads)
                keys = self.rows("key", b, h, columns)
                values = self.rows("value", b, h, columns)
                for i in range(self.tokens):
                    row, lse[b, n, i] = self.row(b, n, i, keys, values, columns)
                    for d in range(self.dim):
                        out[self.query_index(b, n, i, d)] = self.quantised(float(row[d]), n, d)
        return out, lse

    def row(
        self,
        b: int,
        n: int,
        i: int,
        keys: np.ndarray,
        values: np.ndarray,
        columns: list[int],
    ) -> tuple[np.ndarray, float]:
        query = np.array([float(self.query[self.query_index(b, n, i, d)]) for d in range(self.dim)])
        mask, bias, sinks = self.given("atten_mask"), self.given("pse_shift"), self.given("sinks")
        is_tree = (
            mask is not None and mask.ndim == 4 and self.tokens > 1 and mask.shape[2] == self.tokens
        )
        is_causal = self.tokens > 1 and not is_tree
        return attend_row(
            query,
            keys,
            values,
            position=i + len(columns) - self.tokens,
            scale=self.call.get("scale_value", 1.0),
            window=(self.call.get("win_left", -1), 0 if is_causal else -1),
            sink=None if sinks is None else float(sinks[n]),
            softcap=self.call.get("softcap", 0.0),
            lse_includes_sink=self.call.get("lse_includes_sink", False),
            bias=None if bias is None else [float(pick(bias, b, n, i, c)) for c in columns],
            hidden=None if mask is None else [self.hides(mask, b, n, i, c) for c in columns],
            hidden_rows_are_means=self.call.get("masked_row", "zero") == "mean",
        )

    def query_index(self, b: int, n: int, i: int, d: int) -> tuple[int, ...]:
        if self.layout == "BSH":
            return b, i, n * self.dim + d
        return (b, i, n, d) if self.layout == "BSND" else (b, n, i, d)

    def columns(self, b: int) -> list[int]:
        """Columns of the keys of a sequence, those of the prefix first."""
        length = self.length(b)
        start = 0
        padding = self.given("kv_padding_size")
        if padding is not None:
            start = self.room(b) - max(int(padding), 0) - length
            if start < 0:
                start, length = 0, 0
        own = [self.prefix + start + j for j in range(length)]
        return list(range(self.prefix)) + own

    def length(self, b: int) -> int:
        lengths = self.call.get("actual_seq_lengths")
        if lengths is None or len(lengths) == 0:
            return self.room(b)
        return int(lengths[0] if len(lengths) == 1 else lengths[b])

    def room(self, b: int) -> int:
        key = self.call["key"]
        tensor = key if isinstance(key, torch.Tensor) else key[b if len(key) > 1 else 0]
        return tensor.shape[2] if self.layout == "BNSD" else tensor.shape[1]

    def rows(self, side: str, b: int, h: int, columns: list[int]) -> np.ndarray:
        found = np.zeros((len(columns), self.dim))
        for j, column in enumerate(columns):
            for d in range(self.dim):
                found[j, d] = self.number(side, b, h, column, d)
        return found

    def number(self, side: str, b: int, h: int, column: int, d: int) -> float:
        """One element of the keys or values of a sequence, dequantised."""
        if column < self.prefix:
            number = float(self.call[f"{side}_shared_prefix"][0, h, column, d])
        else:
            number = self.stored(side, b, h, column - self.prefix, d)
        scale, offset = self.given("antiquant_scale"), self.given("antiquant_offset")
        if scale is None:
            return number
        where = (0 if side == "key" else 1, b, h, column - self.prefix, d)
        shift = 0.0 if offset is None else self.factor(offset, *where)
        return (number + shift) * self.factor(scale, *where)

    def stored(self, side: str, b: int, h: int, column: int, d: int) -> float:
        cache = self.call[side]
        if self.is_paged:
            page, slot = self.place(b, column)
            if cache.ndim == 3:
                return float(cache[page, slot, h * self.dim + d])
            if cache.ndim == 4:
                return float(cache[page, h, slot, d])
            return float(cache[page, h, d // 16, slot, d % 16])
        tensor, row = cache, b
        if not isinstance(cache, torch.Tensor):
            tensor, row = (cache[b], 0) if len(cache) > 1 else (cache[0], b)
        if self.layout == "BSH":
            return float(tensor[row, column, h * self.dim + d])
        index = (row, column, h, d) if self.layout == "BSND" else (row, h, column, d)
        return float(tensor[index])

    def place(self, b: int, column: int) -> tuple[int, int]:
        cache = self.call["key"]
        size = cache.shape[{3: 1, 4: 2, 5: 3}[cache.ndim]]
        return int(self.call["block_table"][b, column // size]), column % size

    def factor(self, table: torch.Tensor, side: int, b: int, h: int, column: int, d: int) -> float:
        numbers = table[side]
        mode = self.call.get("antiquant_mode")
        if mode is None:
            mode = "per_tensor" if table.ndim == 1 else "per_channel"
        if mode == "per_tensor":
            return float(numbers)
        if mode == "per_channel":
            return float(numbers.reshape(self.kv_heads, self.dim)[h, d])
        outer, inner = self.place(b, column) if self.is_paged else (b, column)
        return float(numbers[outer, inner] if mode == "per_token" else numbers[outer, h, inner])

    def hides(self, mask: torch.Tensor, b: int, n: int, i: int, column: int) -> bool:
        if mask.ndim == 2:
            return bool(mask[b, column])
        return bool(mask[b, 0, column] if mask.ndim == 3 else pick(mask, b, n, i, column))

    def quantised(self, number: float, n: int, d: int) -> float:
        scale, offset = self.given("quant_scale2"), self.given("quant_offset2")
        if scale is None:
            return number
        index = 0 if scale.numel() == 1 else n * self.dim + d
        number *= float(scale.reshape(-1)[index])
        number += 0.0 if offset is None else float(offset.reshape(-1)[index])
        # Python rounds half to even
        return float(min(max(round(number), -128), 127))


def pick(tensor: torch.Tensor, *where: int) -> torch.Tensor:
    """One element, where an axis of one stands for all."""
    pairs = zip(where, tensor.shape, strict=True)
    return tensor[tuple(0 if size == 1 else index for index, size in pairs)]


def attend_by_the_letter(**call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Result in the shape of the query, float64, whole numbers where it is int8; log-sum-exp."""
    return Letter(**call).attend()
