"""Every form of the attention kernels that the launchers choose on an Ascend device.

A form is a point in many dimensions. All row classes, dtypes and masks are there for the plain
forms of the common head dims; each further property (padded head dims, pages, fractals, shaped
logits) is there for every tile that it can meet, with the mask that takes the most room.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from fa_triton.attention.rows import RowKind, RowUnits
from fa_triton.attention.tiles import fractal_tile, loads_fractals, tile_on_pages
from fa_triton.attention.variants import (
    COMBINE_TENSORS,
    FORWARD_TENSORS,
    combine_constants,
)
from fa_triton.kernel_form import KernelForm
from fa_triton.tile_config import DtypeClass, MaskClass, TileConfig, TileKey, choose_tile

FORWARD = "attn_forward"
COMBINE = "attn_combine"
HEAD_DIMS = (64, 128, 256)
SMALL_DIMS = (16, 32)
# (D, DV) where the head dim of v is half of that of k, as in 192 and 128
HALF_DIMS = ((256, 128), (128, 64), (64, 32), (32, 16))

DTYPE_CLASSES: dict[str, DtypeClass] = {"bf16": "16bit", "fp16": "16bit", "fp32": "fp32"}
# Names of the questions that are answered yes, for each mask: none, causal, a bound in mode 4.
_MASKS: dict[MaskClass, tuple[tuple[str, ...], ...]] = {
    "none": (("HAS_LIMIT",),),
    "causal": (("HAS_RIGHT",), ("HAS_RIGHT", "HAS_LIMIT")),
    "window": (
        ("HAS_RIGHT", "HAS_LEFT"),
        ("HAS_RIGHT", "HAS_LEFT", "HAS_LIMIT"),
        ("HAS_LEFT", "HAS_LIMIT"),
    ),
}
_NO_MASK = ("HAS_LIMIT",)
_CAUSAL = ("HAS_RIGHT",)
_WINDOW = ("HAS_RIGHT", "HAS_LEFT")
_BAND = ("HAS_RIGHT", "HAS_LEFT", "HAS_LIMIT")
_COMMON_MASKS = (_NO_MASK, _CAUSAL, _WINDOW)
QUESTIONS = (
    "HEAD_MAJOR",
    "HAS_RIGHT",
    "HAS_LEFT",
    "HAS_LIMIT",
    "HAS_SOFTCAP",
    "HAS_EXACT_CAP",
    "HAS_PADDED_DIM",
    "HAS_CUT_FLAGS",
    "IS_NZ",
    "LSE_HAS_SINK",
    "PEEL_INTERIOR",
)
# Keys of a tile on pages: powers of two, and pages of 48 keys and of 112.
_PAGE_STEPS = (16, 32, 48, 64, 112, 128, 256, 512)
_PAGE_TENSORS = tuple(name for name in FORWARD_TENSORS if name != "alibi_slopes")
_DENSE_TENSORS = tuple(name for name in FORWARD_TENSORS if name != "block_table")
_PLAIN_TENSORS = tuple(name for name in _DENSE_TENSORS if name != "alibi_slopes")
# section_stream_k blocks: (rows, keys) for decode and for the rest
_SECTION_BLOCKS = {True: (64, 256), False: (128, 128)}


@dataclass(frozen=True)
class RowClass:
    """Rows of the longest head unit, and how many heads are merged in it."""

    rows: int
    group: int

    @property
    def is_decode(self) -> bool:
        """Whether its tiles hold the heads of one position."""
        return self.rows <= 16

    @property
    def mask(self) -> tuple[str, ...]:
        """The mask that is run most: decode rows see all keys."""
        return _NO_MASK if self.is_decode else _CAUSAL


# Decode and short queries, then merged rows of long or mixed batches, then one query head.
ROW_CLASSES = (RowClass(16, 8), RowClass(32, 8), RowClass(4096, 4), RowClass(4096, 1))


@dataclass(frozen=True)
class _Shape:
    """What a form is made of besides its tile."""

    device: str
    dtype: str
    rows: RowClass
    dim: int
    dim_v: int
    questions: tuple[str, ...] = ()
    tensors: tuple[str, ...] = _PLAIN_TENSORS

    @property
    def tile(self) -> TileConfig:
        """Tiles that a call of this shape takes."""
        mask: MaskClass = "none"
        if "HAS_RIGHT" in self.questions:
            mask = "causal"
        if "HAS_LEFT" in self.questions:
            mask = "window"
        steps = int("HAS_SOFTCAP" in self.questions) + int("alibi_slopes" in self.tensors)
        steps += int("HAS_EXACT_CAP" in self.questions and self.dtype != "fp32")
        dtype = DTYPE_CLASSES[self.dtype]
        return choose_tile(TileKey(self.device, self.dim, dtype, mask, self.rows.rows, steps))

    @property
    def cap(self) -> tuple[str, ...]:
        """Questions of a soft cap of usual size."""
        return ("HAS_SOFTCAP", "HAS_EXACT_CAP") if self.dtype == "fp32" else ("HAS_SOFTCAP",)

    def form(self, tile: TileConfig | None = None, kv_step: int = 0) -> KernelForm:
        """Form of the forward kernel, with other tiles than its own if given."""
        tile = tile or self.tile
        constants: dict[str, int | bool] = {
            "GROUP": self.rows.group,
            "D": self.dim,
            "DV": self.dim_v,
            "BLOCK_Q": tile.block_q,
            "BLOCK_KV": tile.block_kv,
            "KV_STEP": kv_step or tile.block_kv,
            **{question: question in self.questions for question in QUESTIONS},
            "PEEL_INTERIOR": tile.peel_interior,
        }
        return KernelForm(FORWARD, self.dtype, tuple(constants.items()), self.tensors)

    def but(self, *questions: str, tensors: tuple[str, ...] | None = None) -> _Shape:
        """The same shape with more questions answered yes, and other tensors."""
        answers = (*self.questions, *questions)
        return replace(self, questions=answers, tensors=tensors or self.tensors)


def attn_forms(device: str) -> Iterator[KernelForm]:
    """Forms of both kernels for one device; some come more than once."""
    for dtype, rows in itertools.product(DTYPE_CLASSES, ROW_CLASSES):
        for dim in HEAD_DIMS:
            shape = _Shape(device, dtype, rows, dim, dim, ("HAS_CUT_FLAGS",))
            yield from _plain_forms(shape)
            if dtype != "fp16":  # plans in fp16 equal those in bf16
                yield from _section_stream_k_forms(replace(shape, questions=()))
                yield from _paged_forms(shape)
                yield from _shaped_forms(shape)
        if dtype != "fp16":
            yield from _head_dim_forms(_Shape(device, dtype, rows, 0, 0, ("HAS_CUT_FLAGS",)))
            yield from _combine_forms(device, dtype, rows)


def _plain_forms(shape: _Shape) -> Iterator[KernelForm]:
    """All optional tensors for every mask; none of them for the two commonest masks in bf16."""
    for mask, answers in _answers():
        if shape.dtype == "fp16" and answers not in _COMMON_MASKS:
            continue
        yield shape.but(*answers).form()
        if shape.dtype == "bf16" and mask != "window" and len(answers) == 1:
            yield replace(shape.but(*answers), tensors=()).form()


def _section_stream_k_forms(shape: _Shape) -> Iterator[KernelForm]:
    """CANN's tables: tiles cut to its blocks, no cut flags, head-major rows for BNSD."""
    block_q, block_kv = _SECTION_BLOCKS[shape.rows.is_decode]
    for answers in _COMMON_MASKS:
        masked = shape.but(*answers)
        tile = masked.tile
        block_kv = min(tile.block_kv, block_kv)
        tile = msgspec.structs.replace(tile, block_q=min(tile.block_q, block_q), block_kv=block_kv)
        yield masked.form(tile)
        if not shape.rows.is_decode and shape.rows.group > 1:
            yield masked.but("HEAD_MAJOR").form(tile)


def _paged_forms(shape: _Shape) -> Iterator[KernelForm]:
    """Every number of keys that a page allows, dense columns and fractals where they are loaded."""
    paged = shape.but(*shape.rows.mask, tensors=_PAGE_TENSORS)
    tile = paged.tile
    fractal = fractal_tile(tile, shape.dim, DTYPE_CLASSES[shape.dtype])
    for step in _PAGE_STEPS:
        partial = () if step & (step - 1) == 0 else ("HAS_LIMIT",)
        if step <= tile.block_kv:
            yield paged.but(*partial).form(tile_on_pages(tile, step, shape.device), step)
        if loads_fractals(shape.device) and step <= fractal.block_kv:
            on_pages = tile_on_pages(fractal, step, shape.device)
            yield paged.but("IS_NZ", *partial).form(on_pages, step)
    window = shape.but(*_WINDOW, tensors=_PAGE_TENSORS)
    yield window.form()
    yield paged.but(*shape.cap, "HAS_PADDED_DIM", tensors=FORWARD_TENSORS).form()


def _shaped_forms(shape: _Shape) -> Iterator[KernelForm]:
    """Soft cap and distance bias alone, and everything at once under the widest mask."""
    masked = shape.but(*shape.rows.mask)
    yield masked.but(*shape.cap).form()
    yield masked.but("HAS_SOFTCAP", "HAS_EXACT_CAP").form()
    yield masked.but(tensors=_DENSE_TENSORS).form()
    yield masked.but("LSE_HAS_SINK").form()
    everything = shape.but(*_BAND, *shape.cap, "HAS_PADDED_DIM", "LSE_HAS_SINK")
    yield replace(everything, tensors=_DENSE_TENSORS).form()


def _head_dim_forms(shape: _Shape) -> Iterator[KernelForm]:
    """Small head dims, dims that are no power of two, and two different ones."""
    for dim in SMALL_DIMS:
        yield replace(shape, dim=dim, dim_v=dim).but(*shape.rows.mask).form()
    dims = [(dim, dim) for dim in (*SMALL_DIMS, *HEAD_DIMS)]
    for dim, dim_v in (*dims, *HALF_DIMS):
        yield replace(shape, dim=dim, dim_v=dim_v).but(*shape.rows.mask, "HAS_PADDED_DIM").form()


def _combine_forms(device: str, dtype: str, rows: RowClass) -> Iterator[KernelForm]:
    for dim in (*SMALL_DIMS, *HEAD_DIMS):
        tile = _Shape(device, dtype, rows, dim, dim).tile
        for kind, has_list in (
            (RowKind.PACKED, True),
            (RowKind.PACKED, False),
            (RowKind.HEAD_MAJOR, False),
        ):
            units = RowUnits(kind, 1, 1, rows.group)
            constants = combine_constants(dim, has_list, units, tile)
            yield KernelForm(COMBINE, dtype, tuple(constants.items()), COMBINE_TENSORS)
            if dtype == "bf16":
                yield KernelForm(COMBINE, dtype, tuple(constants.items()), ())
        units = RowUnits(RowKind.PACKED, 1, 1, rows.group)
        for lse_has_sink in (False, True):
            padded = combine_constants(
                dim, True, units, tile, is_padded=True, lse_has_sink=lse_has_sink
            )
            yield KernelForm(COMBINE, dtype, tuple(padded.items()), COMBINE_TENSORS)


def _answers() -> Iterator[tuple[MaskClass, tuple[str, ...]]]:
    for mask, forms in _MASKS.items():
        for answers in forms:
            yield mask, answers
