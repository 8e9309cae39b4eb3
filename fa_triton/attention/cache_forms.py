"""Every form of the forward kernel that decode over a cache chooses on an Ascend device.

Rows are those of short queries. Each property (bias, mask, places, eight bits with and without
offsets) is there alone and with the others that take room beside it, dense and on pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from fa_triton.attention.forms import DTYPE_CLASSES, FORWARD, QUESTIONS, RowClass
from fa_triton.attention.tiles import fractal_tile, integer_tile, loads_fractals, tile_on_pages
from fa_triton.attention.variants import with_cache
from fa_triton.kernel_form import KernelForm
from fa_triton.problem import PER_CHANNEL, PER_TOKEN, PLAIN_CACHE, CacheForm
from fa_triton.tile_config import MaskClass, TileConfig, TileKey, choose_tile

CACHE_DIMS = (64, 128, 256, 512)
# one query head per key head, a group at one position, a group at several
CACHE_ROWS = (RowClass(1, 1), RowClass(16, 8), RowClass(32, 8))
_PAGE_STEPS = (16, 48, 128)
# pages of integers are multiples of 32
_INTEGER_STEPS = (32, 96, 128)
# columns of integers in fractals that fit
MAX_FRACTAL_DIM = 256
_ROW_TENSORS = ("sinks", "softmax_lse")
_USED = "seqused_kv"
_CAUSAL = ("HAS_CUT_FLAGS", "HAS_RIGHT")
_TABLE = "block_table"

_BYTES = CacheForm(has_mask=True)
_BYTE_ROWS = CacheForm(has_mask=True, has_mask_rows=True)
_EVERYTHING = CacheForm(
    has_bias=True, has_mask=True, has_mask_rows=True, has_places=True, has_first_columns=True
)
_DENSE_FORMS = (
    _BYTES,
    _BYTE_ROWS,
    CacheForm(has_bias=True),
    CacheForm(has_places=True),
    _EVERYTHING,
)
_INTEGERS = tuple(
    CacheForm(scales=scales, has_offsets=offsets)
    for scales, offsets in itertools.product((PER_CHANNEL, PER_TOKEN), (False, True))
)


@dataclass(frozen=True)
class _Decode:
    """What a form is made of besides its tile."""

    device: str
    dtype: str
    rows: RowClass
    dim: int
    cache: CacheForm
    questions: tuple[str, ...]
    tensors: tuple[str, ...]

    @property
    def tile(self) -> TileConfig:
        """Tiles that a call of this shape takes."""
        mask: MaskClass = "causal" if "HAS_RIGHT" in self.questions else "none"
        steps = int(self.cache.has_bias) + int(self.cache.has_mask)
        key = TileKey(self.device, self.dim, DTYPE_CLASSES[self.dtype], mask, self.rows.rows, steps)
        tile = choose_tile(key)
        return integer_tile(tile, self.dim, steps) if self.cache.is_integer else tile

    def form(self, tile: TileConfig | None = None, kv_step: int = 0) -> KernelForm:
        """Form of the forward kernel, with other tiles than its own if given."""
        tile = tile or self.tile
        constants: dict[str, int | bool] = {
            "GROUP": self.rows.group,
            "D": self.dim,
            "DV": self.dim,
            "BLOCK_Q": tile.block_q,
            "BLOCK_KV": tile.block_kv,
            "KV_STEP": kv_step or tile.block_kv,
            **{question: question in self.questions for question in QUESTIONS},
            "PEEL_INTERIOR": False,
        }
        form = KernelForm(FORWARD, self.dtype, tuple(constants.items()), self.tensors)
        return form if self.cache == PLAIN_CACHE else with_cache(form, self.cache, tile)

    def over(self, cache: CacheForm, *questions: str) -> _Decode:
        """The same shape over another cache, with more questions answered yes."""
        return replace(self, cache=cache, questions=(*self.questions, *questions))


def cache_forms(device: str) -> Iterator[KernelForm]:
    """Forms for one device; some come more than once."""
    for rows, dim in itertools.product(CACHE_ROWS, CACHE_DIMS):
        if rows.group == 1 and dim != 128:
            continue
        # several positions are causal among themselves
        questions = _CAUSAL if rows.rows > 16 else ("HAS_CUT_FLAGS", "HAS_LIMIT")
        decode = _Decode(device, "bf16", rows, dim, PLAIN_CACHE, questions, (_USED, *_ROW_TENSORS))
        yield from _dense_forms(decode)
        yield from _paged_forms(decode)
        yield from _integer_forms(decode)
    shape = _Decode(
        device, "fp16", CACHE_ROWS[1], 128, PLAIN_CACHE, _CAUSAL, (_USED, *_ROW_TENSORS)
    )
    yield from _integer_forms(shape)


def _dense_forms(decode: _Decode) -> Iterator[KernelForm]:
    if decode.dim > 256:
        yield decode.form()
    for cache in _DENSE_FORMS:
        yield decode.over(cache).form()
    yield decode.over(_EVERYTHING, "HAS_PADDED_DIM", "HAS_SOFTCAP").form()


def _paged_forms(decode: _Decode) -> Iterator[KernelForm]:
    paged = replace(decode, tensors=(_USED, _TABLE, *_ROW_TENSORS))
    for step, cache in itertools.product(_PAGE_STEPS, (_BYTES, _BYTE_ROWS)):
        masked = paged.over(cache)
        if step <= masked.tile.block_kv:
            yield masked.form(tile_on_pages(masked.tile, step, decode.device), step)


def _other_kernel(decode: _Decode) -> KernelForm:
    """The kernel for integers that the tile config does not choose, which it could."""
    tile = decode.tile
    return decode.form(msgspec.structs.replace(tile, int8_terms=not tile.int8_terms))


def _integer_forms(decode: _Decode) -> Iterator[KernelForm]:
    if decode.rows.rows > 16:
        return
    for cache in _INTEGERS:
        yield decode.over(cache).form()
        if decode.dim <= MAX_FRACTAL_DIM and not cache.has_offsets:
            yield _other_kernel(decode.over(cache))
        masked = replace(cache, has_mask=True)
        paged = replace(decode, tensors=(_USED, _TABLE, *_ROW_TENSORS)).over(masked)
        for step in _INTEGER_STEPS:
            if step <= paged.tile.block_kv:
                yield paged.form(tile_on_pages(paged.tile, step, decode.device), step)
        if decode.dim > MAX_FRACTAL_DIM or not loads_fractals(decode.device):
            continue
        fractal = fractal_tile(paged.tile, decode.dim, DTYPE_CLASSES[decode.dtype])
        on_pages = tile_on_pages(fractal, 32, decode.device)
        yield paged.over(masked, "IS_NZ").form(on_pages, 32)
    full = replace(_EVERYTHING, scales=PER_TOKEN, has_offsets=True)
    yield decode.over(full, "HAS_PADDED_DIM").form()
