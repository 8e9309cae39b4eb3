"""Arguments that exclude or need each other: every refusal says why and what to use instead."""

from __future__ import annotations

from typing import Any

import pytest

from fa_triton.validation.incremental import validate_incre_flash_attention
from tests.validation.calls import ints, tensor
from tests.validation.incre_calls import (
    dense,
    f32,
    i8,
    i64,
    int8,
    listed,
    padded,
    paged,
    prefixed,
    quantised,
)

PADDING = {"kv_padding_size": tensor(1, dtype=i64)}
PREFIX_OF_INTEGERS = {
    f"{name}_shared_prefix": tensor(1, 2, 5, 32, dtype=i8) for name in ("key", "value")
}
TOKENS = {
    "antiquant_scale": tensor(2, 2, 40, dtype=f32),
    "antiquant_offset": None,
    "antiquant_mode": "per_token",
}
COMBINATIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    # call, argument that is named, words that tell what to do
    "padding, pages": (paged(**PADDING), "kv_padding_size", "leave the padding out"),
    "padding, list": (
        listed(**PADDING, actual_seq_lengths=[9, 9]),
        "kv_padding_size",
        "cut the padding off",
    ),
    "padding, no lengths": (
        padded(actual_seq_lengths=None),
        "actual_seq_lengths",
        "use a list of ints or a tensor",
    ),
    "pages, no lengths": (
        paged(actual_seq_lengths=None),
        "actual_seq_lengths",
        "use a list of ints or a tensor",
    ),
    "pages, list": (listed(block_table=ints(2, 3)), "key", "pass the cache"),
    "integers, no scale": (int8(antiquant_scale=None), "antiquant_scale", "use (2,) ones"),
    "scale, no integers": (dense(antiquant_scale=tensor(2)), "antiquant_scale", "int8 cache"),
    "offset of the result alone": (
        dense(quant_offset2=tensor(1, dtype=f32)),
        "quant_scale2",
        "use a scale of 1",
    ),
    "dequant_scale1": (
        quantised(dequant_scale1=tensor(1, dtype=f32)),
        "dequant_scale1",
        "use antiquant_scale",
    ),
    "quant_scale1": (dense(quant_scale1=tensor(1)), "quant_scale1", "use antiquant_scale"),
    "dequant_scale2": (dense(dequant_scale2=tensor(1)), "dequant_scale2", "quant_scale2"),
    "prefix, mean": (prefixed(masked_row="mean"), "masked_row", "'zero'"),
    "prefix, window": (prefixed(win_left=3), "win_left", "hide keys by atten_mask"),
    "prefix, scales per token": (
        int8(**PREFIX_OF_INTEGERS, **TOKENS),
        "antiquant_mode",
        "per_tensor or per_channel",
    ),
    "page size without pages": (dense(block_size=16), "block_size", "0 without block_table"),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_refusal_says_why_and_what_to_use(name: str) -> None:
    call, argument, advice = COMBINATIONS[name]
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        validate_incre_flash_attention(**call)
    message = str(caught.value)
    assert f"`{argument}`" in message
    assert advice in message
    # the reason stands in brackets, or the refusal is that of something unbuilt
    assert "(" in message or "not built" in message
