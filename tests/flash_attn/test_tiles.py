"""Tile files load, the ladder goes user file, shipped file, rule; launches log a key."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from fa_triton import flash_attn
from fa_triton.attention.variants import parse_key
from fa_triton.tile_config import TileConfig, TileKey, choose_tile, shipped_entries

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
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_every_problem_has_a_shipped_tile(device: str, head_dim: int) -> None:
    for dtype in ("16bit", "fp32"):
        for mask in ("none", "causal", "window"):
            for rows in (1, 16, 17, 33, 10_000):
                key = TileKey(device, head_dim, dtype, mask, rows)
                assert any(entry.matches(key) for entry in shipped_entries(device))


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
    from fa_triton.variants import attn_variant

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
    from fa_triton.variants import attn_variant, attn_variants

    for variant in attn_variants():
        again = attn_variant(variant.key)
        assert again.constants == variant.constants
        assert again.signature == variant.signature


def test_a_launch_on_an_ascend_device_runs_a_shipped_variant() -> None:
    """The forms that calls prepare are among those that the compile check compiles."""
    from fa_triton.attention.rows import row_units
    from fa_triton.attention.tiles import fit_to_plan
    from fa_triton.attention.variants import combine_form, forward_form
    from fa_triton.planner import AttnWork, make_plan
    from fa_triton.planner.table import encode, read_header
    from fa_triton.validation import validate_flash_attn
    from fa_triton.variants import attn_variants

    q = torch.empty(2, 300, 8, 128, dtype=torch.bfloat16)
    k = torch.empty(2, 300, 8, 128, dtype=torch.bfloat16)
    problem = validate_flash_attn(q, k, k, mask_mode=3)
    shipped = {(variant.key, name) for variant in attn_variants() for name in variant.properties}
    for device in ("A2", "A3", "A5"):
        tile = choose_tile(TileKey(device, 128, "16bit", "causal", 300))
        work = AttnWork([300] * 2, [300] * 2, 8, 8, 128, mask_mode=3)
        sizes = {"block_q": tile.block_q, "block_kv": tile.block_kv}
        plan = make_plan("balanced", work, num_aic=20, num_aiv=40, one_head_rows=True, **sizes)
        header = read_header(encode(plan))
        units = row_units(problem, header)
        fitted = fit_to_plan(tile, header)
        assert (forward_form(problem, header, units, fitted).key, device) in shipped
        assert (combine_form(problem, header, units, fitted).key, device) in shipped


def test_rubbish_is_no_key() -> None:
    with pytest.raises(ValueError, match="key"):
        parse_key("attn_forward")
