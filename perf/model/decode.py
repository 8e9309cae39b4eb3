"""Decode over a cache: the 16-bit kernel and both kernels for a cache of eight bits.

A case is one key/value head with its query heads, attended by one core. The cost of a key is the
difference of two lengths, so that the start of a program and its last steps do not enter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fa_triton import incre_flash_attention
from fa_triton.compile.variant import KernelVariant
from fa_triton.kernel_form import parse_key
from fa_triton.targets import target as find_target
from fa_triton.variants import variant_of_key
from perf.model.candidates.vector_form import TILES, vector_launch, vector_variant
from perf.model.costs import constants
from perf.model.program import Marginal, Program, compiled, marginal, model
from perf.model.recording import RecordedLaunch, recorded

TARGETS = ("A2", "A5")
HEAD_DIMS = (32, 64, 128, 256)
# keys of the two launches that are compared, multiples of what a pipeline takes at once
KEYS = (4096, 8192)
# cycles are given per as many keys, whatever the tile
UNIT_KEYS = 1024
GROUP = 8
_TERMS = "HAS_INT8_TERMS"
_DOUBLE_BUFFERED = 256

Line = dict[str, Any]


@dataclass(frozen=True)
class DecodeCase:
    """One kernel over one cache.

    Attributes:
        target: Device.
        head_dim: D.
        group: Query heads per key head.
        cache: ``16 bit``, ``int8 per channel`` or ``int8 per token``.
        form: ``cube``; for integers ``cast`` (to 16 bit, on the vector cores) or ``terms`` (two
            products of integers); ``vector`` without a matrix product.
        tile_keys: Keys of a tile that is not shipped; 0 for the one that is.
    """

    target: str
    head_dim: int
    group: int
    cache: str
    form: str
    tile_keys: int = 0


def cases() -> Iterator[DecodeCase]:
    """All cases in the order of the tables."""
    for target in TARGETS:
        for dim in HEAD_DIMS:
            yield DecodeCase(target, dim, GROUP, "16 bit", "cube")
            for cache in ("int8 per channel", "int8 per token"):
                for form in ("cast", "terms"):
                    yield DecodeCase(target, dim, GROUP, cache, form)
        for dim in TILES:
            yield DecodeCase(target, dim, 1, "16 bit", "cube")
            # a cube tile that is loaded while the one before is in use
            yield DecodeCase(target, dim, 1, "16 bit", "cube", tile_keys=_DOUBLE_BUFFERED)
            yield DecodeCase(target, dim, 1, "16 bit", "vector")


def decode_line(case: DecodeCase) -> Line:
    """Model one case; the vector form at the tile whose mean over the sets is best."""
    if case.form != "vector":
        return _line(case, *_recorded_case(case))
    lines = [
        _line(case, *_vector_case(case, block_kv), heads=2) for block_kv in TILES[case.head_dim]
    ]
    return min(lines, key=lambda line: math.prod(line["predicted"]["memory"].values()))


def _line(
    case: DecodeCase,
    variant: KernelVariant,
    programs: tuple[Program, Program],
    is_chosen: bool,
    heads: int = 1,
) -> Line:
    """Fields of a result.

    Args:
        case: What was modelled.
        variant: Its kernel.
        programs: With fewer and with more keys.
        is_chosen: Whether a call takes this kernel.
        heads: Heads that a cube core and its vector cores attend at the same time.
    """
    units = (KEYS[1] - KEYS[0]) / UNIT_KEYS
    cost = marginal(programs[1], programs[0], units)
    fewer, more = (p.predictions["memory", "nominal"].cycles for p in programs)
    block_kv = dict(parse_key(variant.key).constants)["BLOCK_KV"]
    return {
        "kind": "decode",
        **asdict(case),
        "tile": variant.tile,
        "block_kv": block_kv,
        "is_chosen": is_chosen,
        "key": variant.key,
        "unit": f"{UNIT_KEYS} keys of one head on a cube core with its vector cores",
        "unit_keys": UNIT_KEYS,
        "heads_at_once": heads,
        "counted": cost.counted,
        "predicted": _rounded(cost, heads),
        "predicted_start": round((fewer - (more - fewer) * KEYS[0] / (KEYS[1] - KEYS[0])), 1),
        "floor": round(_floor(case.target, cost.counted["caller_read"]), 1),
        "busy": cost.busy,
        "source": compiled(variant, case.target).source,
    }


def _rounded(cost: Marginal, heads: int) -> dict[str, dict[str, float]]:
    return {
        source: {name: round(cycles / heads, 1) for name, cycles in by_set.items()}
        for source, by_set in cost.predicted.items()
    }


def _floor(target: str, read: float) -> float:
    """Cycles that a core's share of the memory bandwidth takes for some bytes."""
    device = find_target(target)
    family = constants().families[device.family]
    per_cycle = family.memory_bytes_per_s / (family.clock_ghz * 1e9) / device.cube_cores
    return read / per_cycle


def _recorded_case(case: DecodeCase) -> tuple[KernelVariant, tuple[Program, Program], bool]:
    launches = [_record(case, keys) for keys in KEYS]
    form = parse_key(launches[0].key)
    answers = dict(form.constants)
    is_chosen = True
    if case.tile_keys:
        is_chosen = False
        tile = {"BLOCK_KV": case.tile_keys, "KV_STEP": case.tile_keys}
        form = replace(form, constants=tuple({**answers, **tile}.items()))
    if case.form in ("cast", "terms"):
        is_chosen = bool(answers.get(_TERMS)) == (case.form == "terms")
        form = replace(form, constants=tuple({**answers, _TERMS: case.form == "terms"}.items()))
    variant = variant_of_key(form.key)
    known = compiled(variant, case.target)
    fewer, more = (model(known, case.target, call.launch(known.names)) for call in launches)
    return variant, (fewer, more), is_chosen


def _vector_case(
    case: DecodeCase, block_kv: int
) -> tuple[KernelVariant, tuple[Program, Program], bool]:
    variant = vector_variant(case.head_dim, block_kv)
    known = compiled(variant, case.target)
    fewer, more = (
        model(known, case.target, vector_launch(known.names, case.head_dim, keys)) for keys in KEYS
    )
    return variant, (fewer, more), False


def _record(case: DecodeCase, keys: int) -> RecordedLaunch:
    """Take down the forward launch of a call with one key/value head."""
    dim = case.head_dim
    is_integer = case.cache != "16 bit"
    q = torch.zeros(1, case.group, 1, dim, dtype=torch.bfloat16)
    kv = torch.zeros(1, 1, keys, dim, dtype=torch.int8 if is_integer else torch.bfloat16)
    options: dict[str, Any] = {}
    if case.cache == "int8 per channel":
        options["antiquant_scale"] = torch.ones(2, 1, dim, dtype=torch.bfloat16)
    if case.cache == "int8 per token":
        options = {"antiquant_scale": torch.ones(2, 1, keys), "antiquant_mode": "per_token"}
    with recorded(find_target(case.target)) as launches:
        incre_flash_attention(
            q,
            kv,
            kv,
            num_heads=case.group,
            num_key_value_heads=1,
            input_layout="BNSD",
            actual_seq_lengths=[keys],
            sinks=torch.zeros(case.group),
            return_softmax_lse=True,
            **options,
        )
    return next(call for call in launches if call.kernel == "attn_forward")
