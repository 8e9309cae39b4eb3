"""Tile files load, the ladder goes user file, shipped file, rule; launches log a key."""

from __future__ import annotations

import functools
import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fa_triton import flash_attn
from fa_triton.attention.forms import attn_forms
from fa_triton.attention.rows import row_units
from fa_triton.attention.tiles import (
    fit_to_pages,
    fit_to_plan,
    fractal_tile,
    kv_step,
    loads_fractals,
    padded_dims,
    tile_on_pages,
)
from fa_triton.attention.variants import combine_form, forward_form
from fa_triton.config_files import shipped_entries
from fa_triton.kernel_form import parse_key
from fa_triton.planner import AttnWork, make_plan
from fa_triton.planner.table import encode, read_header
from fa_triton.tile_config import OP, TileConfig, TileEntry, TileKey, choose_tile
from fa_triton.validation import validate_flash_attn

DEVICES = ["A2", "A3", "A5", "cpu"]
ENTRY = {
    "head_dim": 64,
    "dtype": "16bit",
    "masks": ["causal"],
    "config": {"block_q": 32, "block_kv": 32},
    "found": "by hand",
}
KEY = TileKey("cpu", 64, "16bit", "causal", 100)


def write(folder: Path, *entries: object) -> None:
    (folder / "cpu").mkdir()
    (folder / "cpu" / "flash_attn.json").write_text(json.dumps(list(entries)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128, 256])
def test_every_problem_has_a_shipped_tile(device: str, head_dim: int) -> None:
    for dtype in ("16bit", "fp32"):
        for mask in ("none", "causal", "window"):
            for rows, steps in itertools.product((1, 16, 17, 33, 10_000), (0, 1, 2)):
                key = TileKey(device, head_dim, dtype, mask, rows, steps)
                assert any(entry.matches(key) for entry in shipped_entries(OP, device, TileEntry))


def test_the_rule_serves_what_no_file_lists() -> None:
    assert choose_tile(TileKey("A2", 96, "16bit", "none", 8)) == TileConfig(16, 128)


def test_a_users_file_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ENTRY)
    monkeypatch.setenv("FA_TRITON_CONFIG_DIR", str(tmp_path))
    assert choose_tile(KEY) == TileConfig(32, 32)
    assert choose_tile(TileKey("cpu", 64, "16bit", "none", 100)) != TileConfig(32, 32)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": {"block_q": 33, "block_kv": 32}}, "block_q"),
        ({"config": {"block_q": 32}}, "block_kv"),
        ({"dtype": "int8"}, "dtype"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], named: str
) -> None:
    write(tmp_path, ENTRY | change)
    monkeypatch.setenv("FA_TRITON_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=named):
        choose_tile(KEY)


def test_a_launch_logs_a_key_that_can_be_compiled_alone(caplog: pytest.LogCaptureFixture) -> None:
    from fa_triton.attention.shipped import attn_variant

    q, k, v = (torch.randn(1, 20, 2, 64) for _ in range(3))
    with caplog.at_level(logging.DEBUG, logger="fa_triton"):
        flash_attn(q, k, v, mask_mode=3)
    keys = [word for word in caplog.text.split() if word.startswith("attn_forward-")]
    assert keys
    variant = attn_variant(keys[0])
    assert variant.key == keys[0]
    assert variant.constants["HAS_RIGHT"] is True
    assert variant.constants["softmax_lse"] is None


def test_shipped_variants_have_keys_that_read_back() -> None:
    from fa_triton.attention.shipped import attn_variant, attn_variants

    for variant in attn_variants():
        again = attn_variant(variant.key)
        assert again.constants == variant.constants
        assert again.signature == variant.signature


def test_steps_between_product_and_mask_take_room() -> None:
    plain, capped = (TileKey("A2", 128, "16bit", "causal", 4096, steps) for steps in (0, 1))
    assert choose_tile(capped).block_kv < choose_tile(plain).block_kv


@given(sixteens=st.integers(1, 64), block_kv=st.sampled_from([16, 32, 64, 128, 256, 512]))
def test_a_step_on_pages_divides_the_page_and_is_the_largest(sixteens: int, block_kv: int) -> None:
    page_size = 16 * sixteens
    step = kv_step(page_size, block_kv)
    assert page_size % step == 0
    assert step % 16 == 0
    assert step <= block_kv
    larger = range(step + 16, min(page_size, block_kv) + 1, 16)
    assert not [size for size in larger if page_size % size == 0]


@pytest.mark.parametrize(
    ("dims", "padded"),
    [
        ((8, 8), (16, 16)),
        ((64, 64), (64, 64)),
        ((80, 80), (128, 128)),
        ((192, 128), (256, 128)),
        ((128, 192), (256, 256)),
        ((256, 8), (256, 128)),
        ((8, 256), (256, 256)),
    ],
)
def test_head_dims_are_padded_to_few_pairs(dims: tuple[int, int], padded: tuple[int, int]) -> None:
    assert padded_dims(*dims) == padded


@pytest.mark.parametrize("device", ["A2", "A3"])
def test_no_tile_of_64_rows_and_64_keys_on_a2_and_a3(device: str) -> None:
    tile = TileConfig(64, 256)
    assert tile_on_pages(tile, 64, device) == TileConfig(32, 64)
    assert tile_on_pages(tile, 48, device) == TileConfig(32, 64)
    assert tile_on_pages(tile, 32, device) == TileConfig(64, 32)
    assert tile_on_pages(tile, 64, "A5") == TileConfig(64, 64)


PAGES = {"layout_kv": "PA_BBND", "seqused_kv": torch.tensor([300, 300], dtype=torch.int32)}
SLOPES = torch.ones(8)
CALLS: dict[str, tuple[tuple[int, int], int, dict[str, Any]]] = {
    "causal": ((128, 128), 0, {"mask_mode": 3}),
    "head dim 80": ((80, 80), 0, {"mask_mode": 3}),
    "head dims 192 and 128": ((192, 128), 0, {"mask_mode": 3}),
    "softcap": ((128, 128), 0, {"mask_mode": 3, "softcap": 30.0}),
    "distance bias": ((128, 128), 0, {"mask_mode": 3, "alibi_slopes": SLOPES}),
    "pages of 16": ((128, 128), 16, {"mask_mode": 3, **PAGES}),
    "pages of 64": ((128, 128), 64, {"mask_mode": 3, **PAGES}),
    "pages of 48": ((128, 128), 48, {"mask_mode": 3, **PAGES}),
    "pages of 128 in fractals": ((128, 128), 128, {"mask_mode": 3, **PAGES, "layout_kv": "PA_NZ"}),
}


def _operands(
    dims: tuple[int, int], page_size: int, options: dict[str, Any]
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Tensors of a call on two sequences of 300 tokens."""
    q = torch.empty(2, 300, 8, dims[0], dtype=torch.bfloat16)
    if not page_size:
        return [q, *(torch.empty(2, 300, 8, dim, dtype=torch.bfloat16) for dim in dims)], options
    fractals = options["layout_kv"] == "PA_NZ"
    shapes = [
        (9, 8, dim // 16, page_size, 16) if fractals else (9, page_size, 8, dim) for dim in dims
    ]
    table = torch.zeros(2, -(-300 // page_size), dtype=torch.int32)
    k, v = (torch.empty(shape, dtype=torch.bfloat16) for shape in shapes)
    return [q, k, v], options | {"block_table": table}


@pytest.mark.parametrize("name", CALLS)
def test_a_launch_on_an_ascend_device_runs_a_shipped_tile(name: str) -> None:
    """The tiles that calls prepare are among those that the compile check compiles."""
    dims, page_size, call = CALLS[name]
    operands, options = _operands(dims, page_size, call)
    problem = validate_flash_attn(*operands, **options, return_softmax_lse=True)
    for device in ("A2", "A3", "A5"):
        rows, steps = 300, int("softcap" in call) + int("alibi_slopes" in call)
        dim, _ = padded_dims(*dims)
        tile = choose_tile(TileKey(device, dim, "16bit", "causal", rows, steps))
        attended = problem
        if problem.layout_kv == "PA_NZ" and loads_fractals(device):
            tile = fractal_tile(tile, dim, "16bit")
        elif problem.layout_kv == "PA_NZ":
            attended = replace(problem, layout_kv="PA_BNBD")
        work = AttnWork([300] * 2, [300] * 2, 8, 8, dims[0], mask_mode=3)
        sizes = {"block_q": tile.block_q, "block_kv": tile.block_kv}
        if page_size:
            step = kv_step(page_size, tile.block_kv)
            sizes["block_kv"] = step * max(1, tile.block_kv // step)
        plan = make_plan("balanced", work, num_aic=20, num_aiv=40, one_head_rows=True, **sizes)
        header = read_header(encode(plan))
        units = row_units(problem, header)
        if page_size:
            fitted, step = fit_to_pages(tile, header, device, page_size)
        else:
            fitted = fit_to_plan(tile, header, device)
            step = fitted.block_kv
        forward = dict(forward_form(attended, header, units, fitted, step).constants)
        combine = dict(combine_form(problem, header, units, fitted).constants)
        assert forward in _shipped("attn_forward", device)
        assert combine in _shipped("attn_combine", device)


@functools.cache
def _shipped(kernel: str, device: str) -> list[dict[str, int | bool]]:
    """Compile-time arguments of the shipped forms of a kernel."""
    return [dict(form.constants) for form in attn_forms(device) if form.kernel == kernel]


def test_rubbish_is_no_key() -> None:
    with pytest.raises(ValueError, match="key"):
        parse_key("attn_forward")
