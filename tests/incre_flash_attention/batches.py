"""Random calls of ``incre_flash_attention``: one description, tensors in any form.

Everything that a call must not read is NaN, or the largest number where there is none: keys, values
and scales past the actual lengths, before left-padded ones, in unused pages and tails of pages.
Mask and bias have such columns too: hidden or not at random, and NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.flash_attn.paging import Paging

DENSE, LIST = "dense", "list"


@dataclass(frozen=True)
class IncreBatch:
    """Lengths, heads and options.

    Attributes:
        kv_lens: Keys of each sequence, the prefix not counted.
        tokens: Query tokens.
        heads: Query and key/value heads.
        head_dim: D.
        dtype: Of the query.
        layout: ``input_layout``.
        cache: ``dense``, ``list`` or a paged layout.
        page_size: Tokens of a page.
        spare: Columns past the longest sequence: of the sequence axis, of masks and biases.
        lengths: How lengths are told: ``none`` (all are the sequence axis), ``host``, ``long``
            (more than B), ``one`` (for all), ``device``, ``device64``, ``device one``.
        left_padding: ``kv_padding_size`` or None.
        has_short_room: Whether the sequence axis leaves no room for the padding of the longest
            sequence, which then has no keys.
        quant: Antiquant mode of an int8 cache, None for one in the query's dtype.
        channel_rank: Axes of per-channel scales: 2, 3 or 4.
        has_offset: Whether there are antiquant offsets.
        mask: Shape of the mask: ``2``, ``3``, ``4`` axes, ``head``, ``head one``, or with a row per
            query token ``tree``, ``tree one``, ``head tree``, ``head tree one``; or none.
        mask_dtype: Its dtype.
        hides_all: Sequence whose every key it hides, -1 for none.
        bias: ``batch``, ``one``, ``tokens`` (a row per query token), or none.
        prefix: Keys of the shared prefix.
        output_quant: ``tensor``, ``channel`` or none.
        output_dtype: Of the scale of the result.
        has_output_offset: Whether the result gets an offset.
        has_sinks: Whether heads have sinks.
        seed: Of all random values.
        options: Further arguments.
    """

    kv_lens: tuple[int, ...]
    tokens: int = 1
    heads: tuple[int, int] = (2, 1)
    head_dim: int = 16
    dtype: torch.dtype = torch.float16
    layout: str = "BSH"
    cache: str = DENSE
    page_size: int = 16
    spare: int = 0
    lengths: str = "host"
    left_padding: int | None = None
    has_short_room: bool = False
    quant: str | None = None
    channel_rank: int = 3
    has_offset: bool = False
    mask: str = ""
    mask_dtype: torch.dtype = torch.bool
    hides_all: int = -1
    bias: str = ""
    prefix: int = 0
    output_quant: str = ""
    output_dtype: torch.dtype = torch.float32
    has_output_offset: bool = False
    has_sinks: bool = False
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        return len(self.kv_lens)

    @property
    def rooms(self) -> list[int]:
        """Sequence axes of a cache without pages."""
        if self.cache == LIST:
            rooms = [length + b % 3 for b, length in enumerate(self.kv_lens)]
            # one tensor of a list has a key
            return rooms if any(rooms) else [1, *rooms[1:]]
        padding = 0 if self.has_short_room else max(self.left_padding or 0, 0)
        return [max(*self.kv_lens, 1) + self.spare + padding] * self.batch_size

    @property
    def columns(self) -> int:
        """Columns of mask and bias: pages whose number only a device knows may all be full."""
        room = max(self.rooms)
        if self.cache.startswith("PA") and self.lengths.startswith("device"):
            paging = Paging(self.cache, self.page_size)
            room = (paging.pages_of(room) + paging.spare_columns) * self.page_size
        return self.prefix + room

    def but(self, **changes: Any) -> IncreBatch:
        return replace(self, **changes)

    def call(self) -> dict[str, Any]:
        """Arguments of ``incre_flash_attention``, operands among them."""
        generator = torch.Generator().manual_seed(self.seed)
        call: dict[str, Any] = {
            "query": self._query(generator),
            "num_heads": self.heads[0],
            "num_key_value_heads": self.heads[1],
            "input_layout": self.layout,
            "scale_value": self.head_dim**-0.5,
            "actual_seq_lengths": self._lengths(),
        }
        table = None
        if self.cache.startswith("PA"):
            paging = Paging(self.cache, self.page_size)
            table = paging.table(self.kv_lens, tuple(self.rooms), generator)
            call["block_table"] = table
        for side in ("key", "value"):
            call[side] = self._cache(self._tokens(generator), table)
            if self.prefix:
                shape = (1, self.heads[1], self.prefix, self.head_dim)
                call[f"{side}_shared_prefix"] = self._numbers(shape, generator)
        if self.quant is not None:
            call["antiquant_mode"] = self.quant
            call["antiquant_scale"] = self._scales(generator, table, 0.01, 0.03)
            if self.has_offset:
                call["antiquant_offset"] = self._scales(generator, table, -9.0, 9.0)
        if self.left_padding is not None:
            call["kv_padding_size"] = torch.tensor([self.left_padding])
        if self.mask:
            call["atten_mask"] = self._mask(generator)
        if self.bias:
            call["pse_shift"] = self._bias(generator)
        if self.output_quant:
            columns = 1 if self.output_quant == "tensor" else self.heads[0] * self.head_dim
            scale = 20 + 40 * torch.rand(columns, generator=generator)
            call["quant_scale2"] = scale.to(self.output_dtype)
            if self.has_output_offset:
                offset = 8 * torch.randn(columns, generator=generator)
                call["quant_offset2"] = offset.to(self.output_dtype)
        if self.has_sinks:
            call["sinks"] = torch.randn(self.heads[0], generator=generator)
        return call | self.options

    def starts(self) -> list[int]:
        """First column of the own keys of each sequence in the cache; below 0 it has none."""
        if self.left_padding is None:
            return [0] * self.batch_size
        last = max(self.rooms) - max(self.left_padding, 0)
        return [last - length for length in self.kv_lens]

    def _numbers(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        if self.quant is None:
            return torch.randn(shape, generator=generator).to(self.dtype)
        return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)

    def _tokens(self, generator: torch.Generator) -> list[torch.Tensor]:
        """Keys or values of every sequence, ``[length, Nkv, D]``."""
        shape = (self.heads[1], self.head_dim)
        return [self._numbers((length, *shape), generator) for length in self.kv_lens]

    def _query(self, generator: torch.Generator) -> torch.Tensor:
        shape = (self.batch_size, self.tokens, self.heads[0], self.head_dim)
        return self._in_layout(torch.randn(shape, generator=generator).to(self.dtype))

    def _in_layout(self, tensor: torch.Tensor) -> torch.Tensor:
        """Bring ``[B, S, N, D]`` into the input layout."""
        if self.layout == "BSH":
            return tensor.flatten(2)
        return tensor if self.layout == "BSND" else tensor.transpose(1, 2).contiguous()

    def _cache(self, sequences: list[torch.Tensor], table: torch.Tensor | None) -> Any:
        if table is not None:
            pages = Paging(self.cache, self.page_size).cache(sequences, table)
            # without heads of its own where the rank of the cache says so
            return pages.flatten(2) if self.cache == "PA_BBND" else pages
        dtype = sequences[0].dtype
        rows = []
        for tokens, start, room in zip(sequences, self.starts(), self.rooms, strict=True):
            row = torch.full((1, room, *tokens.shape[1:]), poison(dtype), dtype=dtype)
            if start >= 0:
                row[0, start : start + len(tokens)] = tokens
            rows.append(self._in_layout(row))
        return rows if self.cache == LIST else torch.cat(rows)

    def _lengths(self) -> Any:
        lens = list(self.kv_lens)
        told = {
            "none": None,
            "host": lens,
            "long": [*lens, 10**6],
            "one": lens[:1],
            "device": torch.tensor(lens, dtype=torch.int32),
            "device64": torch.tensor([*lens, 7]),
            "device one": torch.tensor(lens[:1], dtype=torch.int32),
        }
        return told[self.lengths]

    def _scales(
        self, generator: torch.Generator, table: torch.Tensor | None, low: float, high: float
    ) -> torch.Tensor:
        """Scales or offsets; those of tokens that no sequence has are NaN."""
        heads, dim = self.heads[1], self.head_dim

        def draw(*shape: int) -> torch.Tensor:
            return low + (high - low) * torch.rand(shape, generator=generator)

        if self.quant == "per_tensor":
            return draw(2).to(self.dtype)
        if self.quant == "per_channel":
            shape = {2: (heads * dim,), 3: (heads, dim), 4: (heads, 1, dim)}[self.channel_rank]
            return draw(2, *shape).to(self.dtype)
        rows = heads if self.quant == "per_token_head" else 1
        if table is None:
            scales = torch.full((2, self.batch_size, rows, max(self.rooms)), torch.nan)
            for b, (start, length) in enumerate(zip(self.starts(), self.kv_lens, strict=True)):
                if start >= 0:
                    scales[:, b, :, start : start + length] = draw(2, rows, length)
        else:
            paging = Paging("PA_BNBD", self.page_size)
            sides = [
                paging.cache([draw(length, rows, 1) for length in self.kv_lens], table)
                for _ in range(2)
            ]
            scales = torch.stack(sides)[..., 0]
        return scales if self.quant == "per_token_head" else scales[:, :, 0]

    def _mask(self, generator: torch.Generator) -> torch.Tensor:
        batch, heads, tokens = self.batch_size, self.heads[0], self.tokens
        leading = {
            "2": (batch,),
            "3": (batch, 1),
            "4": (batch, 1, 1),
            "head": (batch, heads, 1),
            "head one": (1, heads, 1),
            "tree": (batch, 1, tokens),
            "tree one": (1, 1, tokens),
            "head tree": (batch, heads, tokens),
            "head tree one": (1, heads, tokens),
        }[self.mask]
        mask = torch.rand((*leading, self.columns), generator=generator) < 0.4
        if self.hides_all >= 0:
            mask[min(self.hides_all, leading[0] - 1)] = True
        return mask.to(self.mask_dtype)

    def _bias(self, generator: torch.Generator) -> torch.Tensor:
        batch = 1 if self.bias == "one" else self.batch_size
        rows = self.tokens if self.bias == "tokens" else 1
        shape = (batch, self.heads[0], rows, self.columns + 3)
        bias = torch.randn(shape, generator=generator)
        bias[..., self.columns :] = torch.nan
        return bias.to(self.dtype)


def poison(dtype: torch.dtype) -> float:
    """What must not be read."""
    return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max
